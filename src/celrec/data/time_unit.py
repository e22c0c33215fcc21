"""What a number stands for that tells a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LIMITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6))
"""Numbers below each, and how many of its units a second has."""


def ticks_per_second(time: int) -> int:
    """How many units of a timestamp make a second: seconds, milli-, micro- or nanoseconds.

    Its size tells: as seconds, 10¹¹ is a moment in the year 5138, as milliseconds one in 1973.

    >>> ticks_per_second(1_600_000_000), ticks_per_second(1_600_000_000_000)
    (1, 1000)
    """
    return next((ticks for limit, ticks in _LIMITS if abs(time) < limit), 10**9)


def in_unit(times: NDArray[np.int64], ticks: int) -> NDArray[np.int64]:
    """Timestamps of any units in the one of which a second has so many.

    What would not fit is the latest or the earliest time that does.

    >>> in_unit(np.array([1_600_000_000, 1_600_000_000_000]), 1000)
    array([1600000000000, 1600000000000])
    """
    sizes = np.abs(times.clip(-(2**63) + 1))
    own = np.select([sizes < limit for limit, _ in _LIMITS], [n for _, n in _LIMITS], 10**9)
    most = np.iinfo(np.int64).max // ticks - 1
    seconds = np.clip(times // own, -most, most)
    moved: NDArray[np.int64] = seconds * ticks + times % own * ticks // own
    return np.where(own == ticks, times, moved)
