"""Runs that drop ids."""

import numpy as np
import polars as pl
import pytest
import torch

from celrec.config.plan import Plan
from celrec.data.columns import further
from celrec.evaluation.prequential import Prequential
from celrec.online import eviction as eviction
from celrec.online.eviction import IdleTime
from celrec.recommender.batch import Batch
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.runtime.state_file import load_state
from celrec.streams.events import Events

LEAST, BATCH = 20, 15


def plan(embedding="cel-lite", model="mf", **more):
    return Plan(**{"compression": "5", "rank": 3, "embedding": embedding, "model": model, **more})


KINDS = {
    "soft": plan(side="both"),
    "soft items": plan(),
    "soft din": plan(model="din", rank=4),
    "soft personal": plan(side="both", personalise="2"),
    "hard": plan(preset="hard", side="both"),
    "hard deepfm": plan(model="deepfm", rank=4, preset="hard", side="both"),
    "hard personal": plan(preset="hard", personalise="2", side="both"),
    "paper": plan(preset="paper", side="both"),
    "paper din": plan(model="din", rank=4, preset="paper", side="both"),
    "full": plan("full", preset="online", side="both"),
    "full deepfm": plan("full", "deepfm", rank=4, preset="online"),
}
WITHOUT_HISTORY = [kind for kind in KINDS if "din" not in kind]


@pytest.fixture
def often(monkeypatch):
    """Look for silent ids after few events."""
    monkeypatch.setattr(eviction, "SEARCH_EVERY", LEAST)


def columns_of(kind):
    return ["shop"] if KINDS[kind].network else []


def drifting(events, alive=12, life=60, *, start=0, shops=5, seed=0):
    """A stream of users and items each of whom is there for `life` events, `alive` at once."""
    rng = np.random.default_rng([seed, start])
    number = np.arange(start, start + events)
    user, item = (
        (number - rng.integers(life, size=events)) * alive // life + 10 * alive for _ in range(2)
    )
    target = 2 + user % 3 + item % 2 + rng.normal(0, 0.3, events)
    shop = [None if n % 3 == 0 else f"shop {n // 40 % shops}" for n in number.tolist()]
    return pl.DataFrame(
        {
            "user": user,
            "item": pl.Series(item).cast(pl.String) + " x",
            "target": target.astype(np.float32),
            "timestamp": 1_600_000_000 + 60 * number,
            further("shop"): shop,
        }
    )


def cut(frame, size=BATCH):
    return [
        Events(frame[start : start + size], {"row": start + size})
        for start in range(0, len(frame), size)
    ]


def learned(folder, kind, frame, after, size=BATCH):
    run = OnlineRun.start(folder, KINDS[kind], columns_of(kind), evict_after=after)
    for events in cut(frame, size):
        run.learn(events)
    return run


@pytest.mark.usefixtures("often")
def test_all_ids_of_a_column_may_be_silent_and_come_again(tmp_path):
    for kind in ("hard deepfm", "full deepfm"):
        shops = [f"shop {n % 3}" if n < 60 or n >= 240 else None for n in range(300)]
        frame = drifting(300).with_columns(pl.Series(further("shop"), shops))
        folder = tmp_path / kind
        with OnlineRun.start(folder, KINDS[kind], ["shop"], evict_after=IdleTime(50)) as run:
            for events in cut(frame):
                run.learn(events)
                if run.events == 195:
                    assert len(run.learner.tables["shop"].ids) == 0
                    assert run.learner.dropped["shop"] == 3
                    run.checkpoint()
                    assert len(load_run(folder).columns["shop"]) == 0
            assert run.learner.tables["shop"].counts.tolist() == [20, 20, 20]
            run.checkpoint()
        with OnlineRun.resume(folder) as run:
            assert run.learner.tables["shop"].ids.ids.to_list() == ["shop 0", "shop 1", "shop 2"]


@pytest.mark.parametrize("kind", WITHOUT_HISTORY)
@pytest.mark.usefixtures("often")
def test_one_user_and_one_item_may_be_all_that_is_left(tmp_path, kind):
    frame = pl.concat([drifting(100), drifting(1).select(pl.all().repeat_by(100).explode())])
    with learned(tmp_path / "run", kind, frame, IdleTime(40)) as run:
        assert [len(run.learner.tables[name].ids) for name in ("users", "items")] == [1, 1]
        assert run.learner.tables["users"].counts.tolist() in ([100], [101])
        assert np.isfinite(run.learn(cut(drifting(30, start=100))[0]).predictions).all()
        assert len(run.learner.tables["users"].ids) > 3


# What is left.


def half_of(run, rng):
    """Who is to be kept, table by table."""
    sizes = {name: len(table.ids) for name, table in run.learner.tables.items()}
    return {n: np.flatnonzero(rng.random(size) < 0.5).astype(np.int64) for n, size in sizes.items()}


def everybody(trainer, kept, count=50):
    """A batch of ids that are kept, and of nobody, by their old numbers and by their new ones."""
    rng = np.random.default_rng(5)
    places = [rng.integers(-1, len(ids), count) for ids in kept.values()]
    old = [np.append(ids, -1)[place] for ids, place in zip(kept.values(), places, strict=True)]
    target = torch.ones(count)
    moment = torch.full((count,), trainer.events)
    return [
        Batch.of([torch.from_numpy(one) for one in ids], target, moment) for ids in (old, places)
    ]


@pytest.mark.parametrize("kind", WITHOUT_HISTORY)
def test_predictions_for_those_who_remain_are_as_if_nothing_had_happened(tmp_path, kind):
    for seed in range(3):
        with learned(tmp_path / str(seed), kind, drifting(240, seed=seed), None) as run:
            kept = half_of(run, np.random.default_rng(seed))
            old, new = everybody(run.learner.trainer, kept)
            before = run.model(old).detach()
            for name, ids in kept.items():
                run.learner.trainer.keep(name, ids)
            torch.testing.assert_close(run.model(new).detach(), before)


@pytest.mark.parametrize("kind", ["soft din", "paper din"])
def test_dropped_items_fall_out_of_histories_and_the_others_stay_in_their_order(tmp_path, kind):
    with learned(tmp_path / "run", kind, drifting(240), None) as run:
        kept, trainer = half_of(run, np.random.default_rng(0)), run.learner.trainer
        old, new = everybody(trainer, kept)
        before = trainer.with_history(old).history.tolist()
        for name, ids in kept.items():
            trainer.keep(name, ids)
        after = trainer.with_history(new).history.tolist()
        number = {one: place for place, one in enumerate(kept["items"].tolist())}
        left = [[number[one] for one in some if one in number] for some in before]
        assert after == [[-1] * (20 - len(some)) + some for some in left]
        assert 0 < sum(map(len, left)) < sum(one >= 0 for some in before for one in some)
        # The same is written for those who only look.
        for name, ids in kept.items():
            run.learner.tables[name].keep(ids)
        run.checkpoint()
        items = load_run(tmp_path / "run").past["item"]
        assert len(items) == (trainer.history.events(range(99)).columns["item"] >= 0).sum()
        assert items.min() >= 0


@pytest.mark.parametrize("kind", ["soft", "soft items", "soft personal", "full", "full deepfm"])
def test_to_drop_who_never_comes_again_changes_nothing_for_those_who_do(tmp_path, kind):
    first, rest = drifting(200), drifting(200, seed=1)
    with (
        learned(tmp_path / "run", kind, first, None) as run,
        learned(tmp_path / "other", kind, first, None) as other,
    ):
        known = {name: set(table.ids.ids) for name, table in run.learner.tables.items()}
        ids = {"user": "users", "item": "items"} | (
            {further("shop"): "shop"} if columns_of(kind) else {}
        )
        for role, name in ids.items():
            rest = rest.filter(
                pl.col(role).is_in(sorted(known[name])[::2]) | pl.col(role).is_null()
            )
        assert 10 < len(rest) < 150
        kept = {
            name: np.flatnonzero(
                run.learner.tables[name].ids.ids.is_in(rest[role].unique().to_list())
            )
            for role, name in ids.items()
        }
        for name, some in kept.items():
            assert 0 < len(some) < len(run.learner.tables[name].ids)
            run.learner.trainer.keep(name, some)
            run.learner.tables[name].keep(some)
        for events in cut(rest, 7):
            assert (
                run.learn(events).predictions.tolist() == other.learn(events).predictions.tolist()
            )


@pytest.mark.parametrize("kind", ["soft", "soft personal", "hard", "hard deepfm", "paper din"])
@pytest.mark.usefixtures("often")
def test_what_is_kept_of_those_who_are_left_is_what_they_did(tmp_path, kind):
    frame = drifting(280, life=90)
    roles = {"users": "user", "items": "item"} | (
        {"shop": further("shop")} if columns_of(kind) else {}
    )
    with learned(tmp_path / "run", kind, frame, IdleTime(40)) as run:
        assert min(run.learner.dropped.values()) > 0
        first, seen = {}, []  # the row in which each id became known, since it was dropped
        for name, table in run.learner.tables.items():
            rows = {one: [] for one in table.ids.ids}
            for row, one in enumerate(frame[roles[name]]):
                rows.setdefault(one, []).append(row)
            counts = dict(zip(table.ids.ids, table.counts.tolist(), strict=True))
            first[name] = {one: rows[one][-count] for one, count in counts.items()}
            side = run.learner.trainer.sides[name]
            assert side.counts[: len(counts)].tolist() == list(counts.values())
            if "soft" in kind:
                continue
            for number, one in enumerate(counts):
                latest = [row for row in rows[one] if row >= first[name][one]][-20:]
                events = side.latest(np.array([number]))
                assert events.target.tolist() == frame["target"].gather(latest).to_list()
                seen.append((name, latest, events))
        partners = 0
        for name, latest, events in seen:
            for other, ids in zip(roles, events.ids(), strict=True):
                if other == name:
                    continue
                for row, number in zip(latest, ids.tolist(), strict=True):
                    one = frame[roles[other]][row]
                    there = one is not None and row >= first[other].get(one, 1000)
                    known = run.learner.tables[other].ids.ids
                    assert number == (known.index_of(one) if there else -1)
                    partners += not there
        assert (partners > 0) == ("soft" not in kind)


@pytest.mark.usefixtures("often")
def test_an_id_that_comes_again_is_as_if_it_had_never_been_there(tmp_path):
    for kind in WITHOUT_HISTORY:
        with learned(tmp_path / kind, kind, drifting(200), IdleTime(60)) as run:
            gone = drifting(1)
            again = run.learn(Events(gone, {"row": 301}))
            assert (again.user_events.tolist(), again.item_events.tolist()) == ([0], [0])
            assert run.learner.tables["users"].ids.ids[-1] == gone["user"][0]
            assert run.learner.tables["users"].counts[-1] == 1


# Going on.


def everything(run):
    """All that a run is, in one flat dict."""
    found = {}

    def put(place, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                put((*place, key), inner)
        elif isinstance(value, torch.Tensor):
            found[place] = (str(value.dtype), value.shape, value.numpy().tobytes())
        else:
            found[place] = value

    put((), {"model": dict(run.model.state_dict()), "trainer": run.learner.trainer.state_dict()})
    for name, table in run.learner.tables.items():
        moments = None if table.moments is None else table.moments.tolist()
        told = table.counts.tolist(), table.sums.tolist(), moments
        found[name] = (table.ids.ids.dtype, table.ids.ids.to_list(), *told)
    sizes = {name: table.num_embeddings for name, table in run.model.whole_tables.items()}
    return {**found, "sizes": sizes, "dropped": run.learner.dropped, "offset": run.offset}


@pytest.mark.parametrize(
    ("kind", "after"),
    [*((kind, "50") for kind in KINDS), ("soft", "40m"), ("hard", "40m")],
)
@pytest.mark.usefixtures("often")
def test_stopped_after_every_batch_a_run_drops_the_same_and_comes_to_the_same(
    tmp_path, kind, after
):
    start = {"evict_after": IdleTime.parse(after)}
    whole = OnlineRun.start(tmp_path / "whole", KINDS[kind], columns_of(kind), **start)
    parts = OnlineRun.start(tmp_path / "parts", KINDS[kind], columns_of(kind), **start)
    for events in cut(drifting(240), 30):
        one, two = whole.learn(events), parts.learn(events)
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
        parts.checkpoint()
        parts.close()
        parts = OnlineRun.resume(tmp_path / "parts")
        assert everything(parts) == everything(whole)
    assert min(whole.learner.dropped.values()) > 0
    assert whole.learner.dropped["users"] > 20
    whole.close()
    parts.close()


def test_by_default_nobody_is_dropped_and_nothing_is_held_for_it(tmp_path):
    frame, held = drifting(12_000, alive=40), []
    for after in (None, IdleTime(10**6)):
        with learned(tmp_path / str(after), "soft", frame, after, 1000) as run:
            assert run.learner.dropped == {"users": 0, "items": 0}
            assert len(run.learner.tables["users"].ids) > 5_000
            held.append(run.learner.nbytes)
            run.checkpoint()
        [folder] = (tmp_path / str(after) / "checkpoints").iterdir()
        state = load_state(folder / "training.safetensors")
        assert bool(state["forgetting"]) == bool(state["moments"]) == (after is not None)
    assert held[0]["ids"] + 8 * 10_000 < held[1]["ids"]
    assert [held[0][name] == held[1][name] for name in ("model", "training")] == [True, True]
    with OnlineRun.resume(tmp_path / "None") as run:
        assert all(table.moments is None for table in run.learner.tables.values())


@pytest.mark.parametrize(
    ("kind", "events"), [("soft", 100_000), ("hard", 60_000), ("full", 60_000)]
)
def test_where_ids_drift_for_ever_memory_is_bounded_and_errors_are_no_larger(
    tmp_path, kind, events
):
    frame = drifting(events, alive=50, life=1000)
    errors, most, sizes = [], [], []
    for after in (None, IdleTime(2000)):
        metrics, bytes_held, ids_held = Prequential(), [], []
        folder = tmp_path / str(after)
        with OnlineRun.start(folder, KINDS[kind], evict_after=after) as run:
            for part in cut(frame, 250):
                metrics.add(run.learn(part))
                bytes_held.append(sum(run.learner.nbytes.values()))
                ids_held.append(len(run.learner.tables["users"].ids))
            dropped = run.learner.dropped["users"]
        assert dropped + ids_held[-1] == frame["user"].n_unique()
        errors.append(metrics.overall()["all"].mse)
        most.append(bytes_held)
        sizes.append(ids_held)
    # At most those of the 10,000 events since the last look, and of the 2,000 and 1,000 before.
    assert max(sizes[1]) <= 50 * 13 + 50 < sizes[0][-1] / 4
    assert sizes[1][-1] < 200
    half = len(most[1]) // 2
    assert max(most[1][half:]) <= 1.05 * max(most[1][:half])
    assert max(most[1]) < most[0][-1] / 3
    assert min(most[1]) < 0.5 * max(most[1])
    assert errors[1] < 1.02 * errors[0]
    assert errors[1] < (0.6 if kind == "soft" else 0.9) * frame["target"].var()
