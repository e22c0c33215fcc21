"""How far predictions are from targets."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    """Both in double precision; complains if they do not belong together."""
    first, second = np.asarray(predicted, np.float64), np.asarray(target, np.float64)
    if first.shape != second.shape or not first.size:
        raise CelrecError(
            f"predicted and target must have one equal, non-empty shape, "
            f"not {first.shape} and {second.shape}"
        )
    return first, second
