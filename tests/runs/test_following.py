import re

import polars as pl
import pytest

from celrec.config.plan import Plan
from celrec.errors import CelrecError
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.following import Pace, follow
from celrec.runs.online_run import OnlineRun
from celrec.streams.events import Events, EventSource

PLAN = Plan(embedding="cel-lite", compression="3", model="mf", rank=2)


class Live(EventSource):
    """Looks at the disk whenever it hears that it may forget something."""

    kind = "live"

    def __init__(self, run, batches, error=None):
        super().__init__()
        self._run, self._batches, self._error, self.forgotten = run, batches, error, []

    def __str__(self):
        return "live"

    def batches(self, size, after=None):
        for number in range((after or {"n": 0})["n"], self._batches):
            users = [number, *[1] * (size - 1)]
            frame = pl.DataFrame({"user": users, "item": ["a"] * size, "target": [1.0] * size})
            yield Events(frame, {"n": number + 1})
        if self._error is not None:
            raise self._error

    def acknowledge(self, offset):
        assert CheckpointFolder(self._run).latest().about["offset"] == offset
        self.forgotten.append(offset["n"])


def test_a_source_may_forget_what_is_on_the_disk_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    with OnlineRun.start(run, PLAN) as opened:
        source = Live(run, 10)
        follow(opened, source, Pace(2, checkpoint_every=6, checkpoint_seconds=1e9))
    assert source.forgotten == [3, 6, 9, 10]
    with OnlineRun.resume(run) as opened:
        source = Live(run, 13)
        follow(opened, source, Pace(2, checkpoint_seconds=0))
        assert source.forgotten == [11, 12, 13]  # no time is to pass between checkpoints
        assert opened.events == 26


def test_each_batch_is_heard_of_before_it_is_kept(tmp_path):
    heard = []
    with OnlineRun.start(tmp_path / "run", PLAN) as run:
        follow(
            run,
            Live(tmp_path / "run", 5),
            Pace(3, checkpoint_every=6),
            heard=heard.append,
            notes=lambda: {"heard": len(heard)},
        )
    assert [len(learned.targets) for learned in heard] == [3] * 5
    assert heard[2].user_events.tolist() == [0, 5, 5]
    with OnlineRun.resume(tmp_path / "run") as run:
        assert run.notes == {"heard": 5}


def test_notes_stay_as_they_are_where_nobody_has_any(tmp_path):
    run = tmp_path / "run"
    with OnlineRun.start(run, PLAN) as opened:
        follow(opened, Live(run, 1), Pace(2), notes=lambda: {"seen": 1})
        follow(opened, Live(run, 2), Pace(2))
    with OnlineRun.resume(run) as opened:
        assert (opened.events, opened.notes) == (4, {"seen": 1})


def test_it_stops_with_the_batch_that_reaches_enough_events(tmp_path):
    run = tmp_path / "run"
    with OnlineRun.start(run, PLAN) as opened:
        follow(opened, Live(run, 9), Pace(4, events=5))
        assert opened.events == 8
        follow(opened, Live(run, 9), Pace(4, events=8))
        assert opened.events == 8
        follow(opened, Live(run, 9), Pace(4, events=9))
        assert opened.events == 12


def test_it_stops_when_it_is_told_to_and_keeps_what_it_has(tmp_path):
    run, heard = tmp_path / "run", []
    with OnlineRun.start(run, PLAN) as opened:
        source = Live(run, 9)
        follow(opened, source, Pace(2), heard=heard.append, stop=lambda: len(heard) == 3)
        assert source.forgotten == [3]
        follow(opened, source, Pace(2), stop=lambda: True)
        assert (opened.events, source.forgotten) == (6, [3])


def test_an_error_of_the_source_is_raised_when_all_before_is_safe(tmp_path):
    run = tmp_path / "run"
    with OnlineRun.start(run, PLAN) as opened:
        source = Live(run, 3, CelrecError("the broker is gone"))
        with pytest.raises(CelrecError, match="the broker is gone"):
            follow(opened, source, Pace(2))
        assert source.forgotten == [3]


def test_nothing_is_kept_where_nothing_came(tmp_path):
    run = tmp_path / "run"
    with OnlineRun.start(run, PLAN) as opened:
        source = Live(run, 0)
        follow(opened, source, Pace(2))
        assert source.forgotten == []
    assert CheckpointFolder(run).whole() == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batch": 0}, "batch (--batch) must be at least 1, not 0"),
        ({"checkpoint_every": 0}, "checkpoint_every (--checkpoint-every) must be at least 1"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds (--checkpoint-seconds) must not be"),
        ({"checkpoint_seconds": float("nan")}, "must not be negative, not nan"),
    ],
)
def test_mistakes_name_the_argument_and_the_option(given, told):
    with pytest.raises(CelrecError, match=re.escape(told)):
        Pace(**{"batch": 1, **given})
