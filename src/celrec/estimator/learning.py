"""What the estimator does with a run: learn more, save, load, evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from celrec.config.plan import Plan
from celrec.data.columns import further
from celrec.data.interactions import Interactions
from celrec.data.reading import read
from celrec.errors import CelrecError
from celrec.evaluation.comparison import measure
from celrec.evaluation.ranking import Ranking, relevant_from
from celrec.inference.top_k import TopK
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.online_learner import OnlineLearner
from celrec.runs.run_folder import Run, load_run
from celrec.runs.seen_log import LATEST_SEEN, SeenLog, seen_in
from celrec.streams.events import Offset


def learn_events(learner: OnlineLearner, log: Interactions, options: Mapping[str, Any]) -> None:
    """Learn a log in the order of time, if there are times; before that, see whether it fits.

    `options` are what was asked for, so that all else in the plan was picked.
    """
    plan = learner.plan
    _check(plan, log, options)
    if plan.negatives and plan.positive is None:
        log = plan.prepared(log)
    frame = _in_order(log)
    for start in range(0, len(frame), learner.batch):
        learner.learn(frame[start : start + learner.batch])


def _check(plan: Plan, log: Interactions, options: Mapping[str, Any]) -> None:
    """Complain about events that the plan is not for."""
    if plan.positive is not None:
        return
    if plan.negatives and "negatives" not in options:
        if np.ptp(log.target):
            raise CelrecError(
                f"target: there are several, such as {log.target.min():g} and "
                f"{log.target.max():g}, but those of the first table were equal and taken for mere "
                "events; begin with a table that shows several, or with loss='squared-error'"
            )
    elif not plan.negatives:
        plan.check(log)


def _in_order(log: Interactions) -> pl.DataFrame:
    """Events in the order of time, with columns as in `Events`."""
    if log.timestamp is not None:
        log = log[np.argsort(log.timestamp, kind="stable")]
    return log.to_frame().rename({name: further(name) for name in log.columns})


class SavedEstimator(NamedTuple):
    """What a folder holds."""

    run: Run
    learner: OnlineLearner | None
    """What can go on to learn, if anything can."""
    offset: Offset | None
    """Where a source of events goes on that was read before."""
    notes: Mapping[str, Any]


def load_estimator(path: str | Path) -> SavedEstimator:
    """Read the folder of a run that was trained, or of one that learns online.

    The latter may go on meanwhile: what is read is its latest checkpoint.
    """
    place = Path(path)
    found = CheckpointFolder(place).latest()
    if found is None:
        return SavedEstimator(load_run(place, seen=True), None, None, {})
    run = load_run(found.folder)
    try:
        seen = SeenLog.resume(place, found.about.get("seen"), run.known, LATEST_SEEN).seen
        learner, notes = OnlineLearner.load(found.folder, run, seen)
        offset = found.about["offset"]
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(
            f"{path}: does not fit this version of celrec ({problem}); load it with the one that "
            "wrote it"
        ) from error
    return SavedEstimator(learner.run(run.source, run.result), learner, offset, notes)


def evaluate(
    run: Run,
    log: Interactions,
    *,
    k: int | None = None,
    relevant: float | None = None,
    learned: Interactions | None = None,
) -> dict[str, Any]:
    """Errors of predictions for a log and, with `k`, how good the best k items are; for JSON.

    The log is one that the plan has `prepared`. Users like what has a target from `relevant` on;
    see `relevant_from` if it is None. They have seen what was `learned`, if that is given, else
    what the run says.
    """
    events = read(log.to_frame(), like=run.known, columns=list(run.known.columns))
    counts = run.items.get_column("interactions").to_numpy()
    found: dict[str, Any] = {
        "rows": len(events),
        "unseen": {
            "users": int((events.user < 0).sum()),
            "items": int((events.item < 0).sum()),
        },
        "test": measure(run.model, run.plan, events, counts),
    }
    return found if k is None else {**found, "ranking": _rank(run, events, learned, k, relevant)}


def _rank(
    run: Run, test: Interactions, learned: Interactions | None, k: int, relevant: float | None
) -> dict[str, Any]:
    """The `Ranking` of what a run recommends, in all slices."""
    seen = run.seen
    if learned is not None:
        seen = seen_in(read(learned.to_frame(), like=run.known))
    if seen is None:
        raise CelrecError(
            "k: the run has no record of what users have seen, since an earlier version of celrec "
            "wrote it; train again"
        )
    counts = run.items.get_column("interactions").to_numpy()
    if relevant is None:
        sums = run.items.get_column("mean_target").fill_nan(0).to_numpy() @ counts
        relevant = relevant_from(run.plan, test, float(sums) / max(int(counts.sum()), 1))
    users = np.unique(test.user[test.user >= 0])
    lists = TopK(run.model, counts).recommend(users, k, seen=seen).items
    found = Ranking.by_slice(lists, users, test, counts, relevant_from=relevant, seen=seen)
    return {"k": k, "relevant_from": relevant, **{n: asdict(one) for n, one in found.items()}}
