import copy

import numpy as np
import polars as pl
import pytest
import torch

from celrec.config.plan import Plan
from celrec.inference.top_k import TopK
from celrec.online.eviction import IdleTime
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.streams.events import Events


def events(seed, rows=300, users=40, columns=()):
    random = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "user": random.integers(0, users, rows),
            "item": [f"i{number}" for number in random.integers(0, 20 + seed, rows).tolist()],
            "target": random.integers(0, 2, rows).astype(np.float32),
            **{f"ids:{name}": random.integers(0, 5, rows) for name in columns},
        }
    )
    return Events(frame, {"row": seed})


def answers(run):
    users = np.arange(-1, 40)
    top = TopK(run.model, run.items.get_column("interactions").to_numpy())
    return top.recommend(users, 5, seen=run.seen)


PLANS = {
    "default": Plan(embedding="cel-lite", compression="8", model="mf"),
    "hard": Plan(embedding="cel-lite", compression="8", model="mf", preset="hard"),
    "own rows": Plan(embedding="cel-lite", compression="8", model="mf", personalise="5"),
    "histories": Plan(embedding="cel-lite", compression="8", model="din", loss="cross-entropy"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_snapshot_answers_as_a_checkpoint_of_that_moment_whatever_is_learned_later(
    name, tmp_path
):
    with OnlineRun.start(tmp_path / "run", PLANS[name]) as run:
        for seed in range(3):
            run.learn(events(seed))
        run.checkpoint()
        taken = run.snapshot()
        expected = answers(load_run(tmp_path / "run", seen=True))
        frames = copy.deepcopy((taken.users, taken.items))
        for seed in range(3, 9):
            run.learn(events(seed, users=60))
        found = answers(taken)
    np.testing.assert_array_equal(found.items, expected.items)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert taken.users.equals(frames[0], null_equal=True)
    assert taken.items.equals(frames[1], null_equal=True)
    assert taken.known.user_ids.encode([50])[0] == -1


def test_a_snapshot_survives_that_ids_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("celrec.online.eviction.SEARCH_EVERY", 100)
    plan = PLANS["default"]
    with OnlineRun.start(tmp_path / "run", plan, evict_after=IdleTime(50)) as run:
        run.learn(events(0))
        taken = run.snapshot()
        before = answers(taken)
        shown = taken.users.clone()
        for seed in range(1, 6):
            run.learn(events(seed, rows=120, users=4))
        assert sum(run.learner.dropped.values())
        after = answers(taken)
    np.testing.assert_array_equal(before.items, after.items)
    assert taken.users.equals(shown)


def test_further_columns_are_copied_too(tmp_path):
    plan = Plan(embedding="cel-lite", compression="8", model="deepfm", loss="cross-entropy")
    with OnlineRun.start(tmp_path / "run", plan, ["shop"]) as run:
        run.learn(events(0, columns=["shop"]))
        taken = run.snapshot()
        weight = {name: table.clone() for name, table in taken.model.state_dict().items()}
        run.learn(events(1, columns=["shop"]))
    assert list(taken.columns) == ["shop"]
    for name, table in taken.model.state_dict().items():
        assert torch.equal(table, weight[name]), name
