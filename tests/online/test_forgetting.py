import statistics

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.config.plan import Plan
from celrec.embeddings.registry import METHODS
from celrec.online import eviction as eviction
from celrec.online.eviction import Eviction, IdleTime
from celrec.online.known_ids import KnownIds
from celrec.online.make_trainer import stream_model

LEAST = 20
ROLES = {"users": "user", "items": "item", "shops": "shop"}


class Trainer:
    """Takes notice of who is kept."""

    def __init__(self):
        self.events, self.kept = 0, []

    def keep(self, name, ids):
        self.kept.append((name, ids.tolist()))


class Run:
    """What an online run does with ids."""

    def __init__(self, after):
        self.eviction, self.trainer = Eviction(after), Trainer()
        self.tables = {name: KnownIds(moments=np.empty(0, np.int64)) for name in ROLES}

    def learn(self, frame):
        moments = self.eviction.moments(frame, self.trainer.events)
        for name, table in self.tables.items():
            if ROLES[name] in frame.columns:
                numbers = table.numbers(frame[ROLES[name]])
                table.add(numbers, frame["target"].to_numpy(), moments)
        self.trainer.events += len(frame)
        self.trainer.kept.clear()
        before = {name: len(table.ids) for name, table in self.tables.items()}
        self.eviction.look(self.tables, self.trainer, self.trainer.events)
        after = {name: len(table.ids) for name, table in self.tables.items()}
        shrunk = [name for name in ROLES if after[name] < before[name]]
        assert [name for name, _ in self.trainer.kept] == shrunk
        assert all(len(ids) == after[name] for name, ids in self.trainer.kept)

    def restart(self):
        state = self.eviction.state_dict()
        state = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in state.items()}
        self.eviction = Eviction.from_state(state)


class SlowForgetting:
    """A dictionary of the last moment, the count and the sum of each id, table by table."""

    def __init__(self, after):
        self.tables = {name: {} for name in ROLES}
        self.length, self.timed = after.length, after.unit is not None
        self.seconds = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}.get(after.unit)
        self.times, self.events, self.next = [], 0, LEAST
        self.dropped = dict.fromkeys(ROLES, 0)

    def learn(self, rows, ticks):
        self.times += [row["timestamp"] for row in rows]
        now = statistics.median_low(self.times[-101:])
        for row in rows:
            moment = min(row["timestamp"], now) if self.timed else self.events
            self.events += 1
            for name, table in self.tables.items():
                if (one := row[ROLES[name]]) is not None:
                    last, count, total = table.get(one, (moment, 0, 0.0))
                    table[one] = max(last, moment), count + 1, total + row["target"]
        if self.events < self.next:
            return
        longest = self.length * (self.seconds * ticks if self.timed else 1)
        now = now if self.timed else self.events - 1
        for name, table in self.tables.items():
            silent = [one for one, (last, _, _) in table.items() if now - last > longest]
            self.dropped[name] += len(silent)
            for one in silent:
                del table[one]
        left = sum(map(len, self.tables.values()))
        self.next = self.events + max(LEAST, left)

    def check(self, run):
        for name, table in self.tables.items():
            known = run.tables[name]
            assert known.ids.ids.to_list() == list(table)
            assert known.counts.tolist() == [count for _, count, _ in table.values()]
            assert known.moments.tolist() == [last for last, _, _ in table.values()]
            assert known.sums.tolist() == [total for _, _, total in table.values()]
            assert run.eviction.dropped.get(name, 0) == self.dropped[name]


def events_of_any_time(rng, size, number, time, ticks):
    """Some come late, a few are stamped by clocks that are wrong."""
    late = rng.integers(0, 400, size) * (rng.random(size) < 0.2)
    wrong = (rng.random(size) < 0.02) * 10**7
    return pl.DataFrame(
        {
            "user": rng.integers(0, 12, size) + 3 * number,
            "item": rng.integers(0, 5, size) ** 2,
            "target": rng.integers(1, 6, size).astype(np.float32),
            "timestamp": (time + 2 * np.arange(size) - late + wrong) * ticks,
            "shop": [None if n % 4 else f"shop {n}" for n in rng.integers(9, size=size)],
        },
        schema_overrides={"shop": pl.String},
    )


silences = st.builds(IdleTime, st.integers(1, 60)) | st.builds(
    IdleTime, st.integers(1, 40), st.sampled_from("sm")
)


@given(
    st.integers(0, 999),
    st.lists(st.sampled_from([1, 4, 30, 130]), min_size=1, max_size=15),
    silences,
    st.sampled_from([1, 10**3, 10**6, 10**9]),
)
def test_those_are_dropped_whom_a_dictionary_of_last_moments_says(seed, sizes, after, ticks):
    rng, time = np.random.default_rng(seed), 1_600_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eviction, "SEARCH_EVERY", LEAST)
        run, slow = Run(after), SlowForgetting(after)
        for number, size in enumerate(sizes):
            frame = events_of_any_time(rng, size, number, time, ticks)
            time += 2 * size
            run.learn(frame)
            slow.learn(frame.rows(named=True), ticks)
            slow.check(run)
            if rng.random() < 0.3:
                run.restart()


def someone(users, times=None):
    count = len(users)
    frame = pl.DataFrame({"user": users, "item": [1] * count, "target": [1.0] * count})
    return frame if times is None else frame.with_columns(timestamp=pl.Series(times))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (4_000, [10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000]),
        # After 10,000 and 21,000 events nobody has been silent for long, and all are left.
        (24_000, [43_000, 68_000]),
    ],
)
def test_everybody_is_looked_at_when_as_many_events_have_come_as_ids_were_left(length, expected):
    run, looks, dropped = Run(IdleTime(length)), [], 0
    for start in range(0, 70_000, 1000):  # everybody is there once
        run.learn(someone(np.arange(start, start + 1000)))
        if (now := run.eviction.dropped.get("users", 0)) > dropped:
            dropped = now
            looks.append(run.trainer.events)
            assert len(run.tables["users"].ids) == length + 1
        assert dropped + len(run.tables["users"].ids) == run.trainer.events
    assert looks == expected


@pytest.mark.parametrize("ticks", [1, 1000, 10**6, 10**9])
def test_who_was_last_heard_of_just_so_long_ago_stays(ticks, monkeypatch):
    monkeypatch.setattr(eviction, "SEARCH_EVERY", 1)
    for text, seconds in (("1d", 86_400), ("5h", 18_000), ("3m", 180), ("7s", 7)):
        run, now = Run(IdleTime.parse(text)), 1_700_000_000
        run.learn(someone([1], [(now - seconds) * ticks]))
        run.learn(someone([2] * 200, [now * ticks] * 200))
        assert run.tables["users"].ids.ids.to_list() == [1, 2]
        run.learn(someone([2] * 200, [now * ticks + 1] * 200))
        assert run.tables["users"].ids.ids.to_list() == [2]


def test_few_wrong_clocks_make_nobody_silent_and_nobody_immortal(monkeypatch):
    monkeypatch.setattr(eviction, "SEARCH_EVERY", 1)
    run, now = Run(IdleTime(1, "h")), 1_700_000_000
    run.learn(someone(range(50), [now] * 50))
    for year in range(1, 6):  # one at a time
        run.learn(someone([99], [now + year * 31_536_000]))
        run.learn(someone([99], [0]))
    assert len(run.tables["users"].ids) == 51
    run.learn(someone([7] * 200, [now + 3_601] * 200))
    assert run.tables["users"].ids.ids.to_list() == [7]


def test_late_events_wake_nobody_up_and_take_nobody_back(monkeypatch):
    monkeypatch.setattr(eviction, "SEARCH_EVERY", 1)
    run, now = Run(IdleTime(1, "h")), 1_700_000_000
    run.learn(someone([1, 2], [now, now]))
    run.learn(someone([1, 3], [now - 7_200, now - 7_200]))
    run.learn(someone([4] * 200, [now] * 200))
    assert run.tables["users"].ids.ids.to_list() == [1, 2, 4]


@pytest.mark.parametrize("times", [None, [None, 5], [None, None]])
def test_time_needs_timestamps(times):
    run = Run(IdleTime(90, "d"))
    frame = someone([1, 2], None if times is None else pl.Series(times, dtype=pl.Int64))
    run.learn(someone([], []))
    with pytest.raises(CelrecError) as told:
        run.learn(frame)
    assert str(told.value) == (
        "evict_after '90d' goes by timestamps, and events have none; name their column "
        "(--timestamp-column), or give a number of events"
    )
    assert len(run.tables["users"].ids) == 0


def test_without_a_silence_nothing_is_kept_and_nobody_dropped():
    nothing = Eviction()
    assert nothing.moments(someone([1]), 0) is None
    assert nothing.state_dict() == {}
    nothing.look({}, Trainer(), 0)
    assert Eviction.from_state({}).after is None


@pytest.mark.parametrize("name", METHODS)
def test_tables_that_cannot_drop_ids_are_told_at_the_start(name):
    preset = "default" if name == "cel-lite" else "online"
    try:
        plan = Plan(embedding=name, compression="8", model="mf", preset=preset, rank=4)
        model = stream_model(plan, [])
    except CelrecError:
        return  # not for streams at all
    Eviction().check(model, name)
    if name in ("cel-lite", "full"):
        Eviction(IdleTime(5)).check(model, name)
        return
    with pytest.raises(CelrecError, match=f"evict_after: embedding '{name}' cannot drop ids"):
        Eviction(IdleTime(5)).check(model, name)
