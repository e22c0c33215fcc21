"""Ids that are told by their numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.errors import CelrecError


def whole_numbers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """`values` in one row; where they are anything but whole numbers, `name` is complained about.

    >>> whole_numbers("users", [3, -1])
    array([ 3, -1])
    """
    numbers = np.asarray(values)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise CelrecError(
            f"{name} must be whole numbers in one row, not {numbers.dtype} of shape {numbers.shape}"
        )
    return numbers.astype(np.int64, copy=False)
