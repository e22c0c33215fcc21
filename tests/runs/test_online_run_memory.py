"""Runs with a budget of memory."""

import copy
import itertools
import resource

import numpy as np
import pytest
import torch

from celrec.errors import CelrecError
from celrec.online.eviction import IdleTime
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.online_run import OnlineRun
from tests.runs.test_online_run import (  # noqa: F401
    KINDS,
    MF,
    batches,
    columns_of,
    everything,
    log,
)


@pytest.mark.parametrize("kind", KINDS)
def test_no_result_depends_on_the_memory_nor_on_another_one_after_every_stop(
    log,  # noqa: F811
    tmp_path,
    kind,
):
    plan, budgets = KINDS[kind], itertools.cycle([0, None, 3000, 10**9])
    with OnlineRun.start(tmp_path / "whole", plan, columns_of(plan)) as whole:
        run = OnlineRun.start(tmp_path / "parts", plan, columns_of(plan), memory=0)
        for events in batches(log):
            one, other = whole.learn(events), run.learn(events)
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
            assert everything(run) == everything(whole)
            assert [*map(list, run.seen.events())] == [*map(list, whole.seen.events())]
            run.checkpoint()
            run.close()
            budget = next(budgets)
            run = OnlineRun.resume(tmp_path / "parts", memory=budget)
            assert everything(run) == everything(whole)
            assert (run.mapped > 0) == (budget in (0, 3000))
            assert run.learner.budget is None or run.learner.budget.memory_bytes <= budget
        run.close()
        assert whole.mapped == 0


@pytest.mark.parametrize("kind", ["soft mf", "hard mf", "literal din", "full", "hard personal"])
def test_ids_are_dropped_alike(log, tmp_path, monkeypatch, kind):  # noqa: F811
    monkeypatch.setattr("celrec.online.eviction.SEARCH_EVERY", 50)
    plan = KINDS[kind]
    runs = [
        OnlineRun.start(
            tmp_path / str(memory),
            plan,
            columns_of(plan),
            evict_after=IdleTime(70),
            memory=memory,
        )
        for memory in (None, 0, 3000)
    ]
    for events in batches(log, 30):
        for run in runs:
            run.learn(events)
    assert sum(runs[0].learner.dropped.values()) > 10
    for run in runs[1:]:
        assert everything(run) == everything(runs[0])
        assert [*map(list, run.seen.events())] == [*map(list, runs[0].seen.events())]
    for run in runs:
        run.close()


def test_a_snapshot_of_what_is_in_files_does_not_change(log, tmp_path):  # noqa: F811
    first, *others = batches(log)
    with OnlineRun.start(tmp_path / "run", MF, memory=0) as run:
        run.learn(first)
        shown = run.snapshot()
        before = copy.deepcopy((shown.model.state_dict(), shown.seen.events()))
        for events in others:
            run.learn(events)
    assert all(torch.equal(before[0][n], one) for n, one in shown.model.state_dict().items())
    assert all(np.array_equal(*two) for two in zip(before[1], shown.seen.events(), strict=True))


def test_nothing_of_the_files_is_seen_in_the_folder(log, tmp_path):  # noqa: F811
    with OnlineRun.start(tmp_path / "run", MF, memory=0) as run:
        run.learn(batches(log)[0])
        assert run.mapped > 1000
        assert {path.name for path in run.folder.iterdir()} == {"lock", "rejected.jsonl"}


def test_a_full_disk_is_told_and_the_last_checkpoint_is_whole(log, tmp_path):  # noqa: F811
    first, second, *others = batches(log)
    with OnlineRun.start(tmp_path / "run", MF, memory=0) as run:
        run.learn(first)
        run.checkpoint()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
        try:
            with pytest.raises(
                CelrecError, match=r"^memory: arrays .* files in .*free space on that disk"
            ):
                for events in (second, *others):
                    run.learn(events)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(CheckpointFolder(tmp_path / "run").whole()) == 1
    with (
        OnlineRun.resume(tmp_path / "run") as run,
        OnlineRun.start(tmp_path / "other", MF) as other,
    ):
        for events in (second, *others):
            run.learn(events)
        for events in batches(log):
            other.learn(events)
        assert everything(run) == everything(other)
