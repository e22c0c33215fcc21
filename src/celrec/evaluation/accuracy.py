"""How well a model predicts, overall and for cold and warm items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.data.interactions import Interactions
from celrec.evaluation.metrics import area_under_curve, mean_squared_error

COLD_LIMIT = 20
"""An item with at most so many training interactions is cold."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean squared errors, and where targets are 0 or 1 AUC; None where there is nothing to judge.

    >>> import celrec
    >>> train = celrec.read({"user": [1] * 25, "item": [1] * 24 + [2], "rating": [3.0] * 25})
    >>> test = celrec.read({"user": [1, 1], "item": [1, 2], "rating": [3.0, 5.0]}, like=train)
    >>> Accuracy.of([3.0, 3.0], test, train.item_counts)
    Accuracy(mse=2.0, mse_cold=4.0, mse_warm=0.0, auc=None, auc_cold=None)
    """

    mse: float | None
    mse_cold: float | None
    """On rows whose item is cold or unseen."""
    mse_warm: float | None
    auc: float | None
    """The chance that a 1 is predicted higher than a 0."""
    auc_cold: float | None

    @classmethod
    def of(
        cls, predicted: ArrayLike, test: Interactions, item_counts: NDArray[np.int64]
    ) -> Accuracy:
        """The errors of predictions for `test`, given each item's training interactions."""
        values = np.asarray(predicted, np.float64)
        counts = np.append(item_counts, 0)  # the last entry serves unseen items
        warm = counts[np.minimum(test.item, len(item_counts))] > COLD_LIMIT
        everything = np.ones(len(test), bool)
        errors = (_mse(values, test, part) for part in (everything, ~warm, warm))
        return cls(*errors, *(_auc(values, test, part) for part in (everything, ~warm)))


def _mse(
    predicted: NDArray[np.float64], test: Interactions, rows: NDArray[np.bool_]
) -> float | None:
    return mean_squared_error(predicted[rows], test.target[rows]) if rows.any() else None


def _auc(
    predicted: NDArray[np.float64], test: Interactions, rows: NDArray[np.bool_]
) -> float | None:
    target = test.target[rows]
    if not np.isin(test.target, (0, 1)).all() or len(np.unique(target)) < 2:
        return None
    return area_under_curve(predicted[rows], target)
