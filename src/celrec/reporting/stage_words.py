"""A stage of training, for the page."""

from __future__ import annotations

import math
from typing import Any

from celrec.reporting.learning_picture import (
    best_of,
    clusters_of,
    learning_picture,
    marked_splits,
)
from celrec.reporting.plan_words import compressed_sides
from celrec.training.judgement import Judgement
from celrec.training.run_folder import Run

_STAGES = {
    "choose": "Rows and clusters",
    "personalise": "Rows of their own",
    "finish": "The network, on rows and clusters of a factorisation",
}


def stage_words(name: str, judgements: list[Judgement], run: Run) -> dict[str, Any]:
    """What the page shows of it: a picture, and the numbers behind it."""
    plan = run.plan
    sides = compressed_sides(run) if plan.clustered or plan.online else []
    if not any(clusters_of(one, sides) for one in judgements):
        sides = []
    best = best_of(judgements)
    splits = bool(sides) and name == "choose"
    rows, before = [], None
    for one in judgements:
        count = clusters_of(one, sides)
        rows.append(
            {
                "step": one.step,
                "train": one.train_loss if math.isfinite(one.train_loss) else None,
                "valid": one.valid_loss if math.isfinite(one.valid_loss) else None,
                "clusters": count,
                "split": max(count - before, 0) if before is not None else 0,
                "moved": one.moved,
                "best": one is best,
            }
        )
        before = count
    legend = [("train", "training loss")]
    if best is not None:
        legend.append(("valid", "validation loss"))
    if splits and marked_splits(judgements, sides):
        legend.append(("split", "clusters were split"))
    if any(one.moved for one in judgements):
        legend.append(("moved", "ids that moved to another cluster"))
    return {
        "name": _STAGES.get(name, name),
        "picture": learning_picture(judgements, sides if splits else []),
        "legend": legend,
        "rows": rows,
        "splits": splits,
    }
