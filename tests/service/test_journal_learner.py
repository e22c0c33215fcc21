import json
import time

import numpy as np
import polars as pl
import pytest

from celrec.config.plan import Plan
from celrec.online.eviction import IdleTime
from celrec.runs.following import Pace
from celrec.runs.online_run import OnlineRun
from celrec.service.learning import JournalLearner
from celrec.service.version import Versions
from celrec.streams.events import Events
from celrec.streams.journal import Journal

PLAN = Plan(embedding="cel-lite", compression="4", model="mf")
NOW = 1_700_000_000


def lines(*times, user="late"):
    written = (
        {"user": f"{user}{number}", "item": number, "target": 1.0, "timestamp": time}
        for number, time in enumerate(times)
    )
    return b"".join(json.dumps(one).encode() + b"\n" for one in written)


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_times_of_any_unit_become_those_of_the_run(tmp_path, ticks):
    frame = pl.DataFrame(
        {"user": ["a"], "item": [1], "target": [1.0], "timestamp": [NOW * ticks]},
        schema_overrides={"timestamp": pl.Int64},
    )
    with OnlineRun.start(tmp_path / "run", PLAN, evict_after=IdleTime.parse("90d")) as run:
        run.learn(Events(frame, {}))
        journal = Journal(tmp_path / "run" / "journal")
        learner = JournalLearner(run, journal, Versions(run.snapshot()), Pace(10))
        journal.append(lines(NOW, NOW * 10**3, NOW * 10**6, NOW * 10**9), 4)
        learner.start()
        learner.stop()
        assert learner.problem is None
        assert run.learner.eviction.now == NOW * ticks
        np.testing.assert_array_equal(run.learner.tables["users"].moments, [NOW * ticks] * 5)
        journal.close()


def test_what_is_learned_is_published_and_kept(tmp_path):
    with OnlineRun.start(tmp_path / "run", PLAN) as run:
        journal = Journal(tmp_path / "run" / "journal")
        versions = Versions(run.snapshot())
        learner = JournalLearner(run, journal, versions, Pace(2, checkpoint_every=3))
        journal.append(lines(*range(7)), 7)
        assert learner.waiting == 7
        learner.start()
        deadline = time.monotonic() + 20
        while versions.current.learned < 7:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (learner.learned, learner.waiting) == (7, 0)
        learner.stop()
        journal.close()
    with OnlineRun.resume(tmp_path / "run") as run:
        assert (run.events, run.journal) == (7, 7)
    assert len(versions.current.run.users) == 7


def test_far_targets_do_not_spoil_what_was_learned(tmp_path):
    with OnlineRun.start(tmp_path / "run", PLAN) as run:
        journal = Journal(tmp_path / "run" / "journal")
        learner = JournalLearner(run, journal, Versions(run.snapshot()), Pace(64))
        random = np.random.default_rng(0)
        for _ in range(40):
            targets = random.choice([1e6, -1e6, 1.0, 0.0], 50)
            events = [
                {"user": int(u), "item": int(i), "target": t, "timestamp": 1}
                for u, i, t in zip(
                    random.integers(0, 20, 50), random.integers(0, 9, 50), targets, strict=True
                )
            ]
            journal.append(b"".join(json.dumps(one).encode() + b"\n" for one in events), 50)
        learner.start()
        learner.stop()
        journal.close()
        assert learner.problem is None
        assert run.events == 2_000
