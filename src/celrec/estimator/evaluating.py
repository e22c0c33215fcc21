"""What a run reaches on interactions that it has not seen, errors and lists together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from celrec.data.interactions import Interactions
from celrec.data.reading import read
from celrec.errors import CelrecError
from celrec.evaluation.measuring import measure
from celrec.evaluation.ranking import Ranking
from celrec.evaluation.relevance import relevant_from
from celrec.serving.top_k import TopK
from celrec.training.run_folder import Run
from celrec.training.seen_file import seen_in


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
            "k: the run does not tell what users have seen, since an earlier version of celrec "
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
