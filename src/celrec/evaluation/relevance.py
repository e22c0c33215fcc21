"""What counts as something that a user likes."""

from __future__ import annotations

import numpy as np

from celrec.data.interactions import Interactions
from celrec.training.plan import Plan


def relevant_from(plan: Plan, test: Interactions, mean: float) -> float | None:
    """The target from which on an item of `test` counts as liked; None: all of them do.

    Trained on what happened only, a model knows of interactions only, and all of them count. Of
    targets 0 and 1 a 1 does; a rating does if it is as high as the plan's `positive`, or as the
    `mean` of all ratings.

    >>> import celrec
    >>> ratings = celrec.read({"user": [1, 2], "item": [5, 6], "rating": [5.0, 2.0]})
    >>> relevant_from(Plan(), ratings, 3.5)
    3.5
    """
    if plan.only_positive:
        return None
    if np.isin(test.target, (0, 1)).all():
        return 1.0
    return mean if plan.positive is None else plan.positive
