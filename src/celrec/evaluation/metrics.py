"""How far predictions are from targets, overall and for cold and warm items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.data.interactions import Interactions
from celrec.errors import CelrecError

_SURE = 1e-7


def mean_squared_error(predicted: ArrayLike, target: ArrayLike) -> float:
    """(1/n)·Σ (predicted − target)², in double precision.

    >>> mean_squared_error([3.0, 4.0], [3.0, 2.0])
    2.0
    """
    first, second = _alike(predicted, target)
    return float(np.mean((first - second) ** 2))


def area_under_curve(predicted: ArrayLike, target: ArrayLike) -> float:
    """The chance that a target 1 is predicted higher than a target 0; ties count half (AUC).

    >>> area_under_curve([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    scores, positive = np.asarray(predicted, np.float64), np.asarray(target) > 0.5
    if scores.shape != positive.shape or positive.all() or not positive.any():
        raise CelrecError(
            "target must hold both 0 and 1, one for each prediction, "
            f"not {positive.shape} with {int(positive.sum())} ones for {scores.shape}"
        )
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # the mean rank among equals, from 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    rank_sum = float(middle[inverse[positive]].sum())
    return (rank_sum - ones * (ones + 1) / 2) / (ones * zeros)


def log_loss(predicted: ArrayLike, target: ArrayLike) -> float:
    """−(1/n)·Σ x·log p + (1 − x)·log(1 − p) for targets x of 0 and 1 and predictions p between.

    A prediction is taken to be no surer than 10⁻⁷, so that no loss is infinite.

    >>> round(log_loss([0.5, 0.25], [1, 0]), 4)
    0.4904
    """
    first, second = _alike(predicted, target)
    if not (np.isin(second, (0, 1)).all() and ((first >= 0) & (first <= 1)).all()):
        raise CelrecError("target must be 0 or 1, and predicted between; take another metric")
    right = np.where(second == 1, first, 1 - first)
    return float(-np.log(np.maximum(right, _SURE)).mean())


def _alike(
    predicted: ArrayLike, target: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = np.asarray(predicted, np.float64), np.asarray(target, np.float64)
    if first.shape != second.shape or not first.size:
        raise CelrecError(
            f"predicted and target must have one equal, non-empty shape, "
            f"not {first.shape} and {second.shape}"
        )
    return first, second


COLD_LIMIT = 20
"""An item with at most so many training interactions is cold."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean squared errors, and where targets are 0 or 1 AUC; None without interactions.

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
