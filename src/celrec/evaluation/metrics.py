"""How far predictions are from targets."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from celrec.errors import CelrecError


def mean_squared_error(predicted: ArrayLike, target: ArrayLike) -> float:
    """(1/n)·Σ (predicted − target)², in double precision.

    >>> mean_squared_error([3.0, 4.0], [3.0, 2.0])
    2.0
    """
    first, second = np.asarray(predicted, np.float64), np.asarray(target, np.float64)
    if first.shape != second.shape or not first.size:
        raise CelrecError(
            f"predicted and target must have one equal, non-empty shape, "
            f"not {first.shape} and {second.shape}"
        )
    return float(np.mean((first - second) ** 2))
