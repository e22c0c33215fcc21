"""What a number stands for that tells a time."""

from __future__ import annotations

_LIMITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6))
"""Numbers below each, and how many of its units a second has."""


def ticks_per_second(time: int) -> int:
    """How many units of a timestamp make a second: seconds, milli-, micro- or nanoseconds.

    Its size tells: as seconds, 10¹¹ is a moment in the year 5138, as milliseconds one in 1973.

    >>> ticks_per_second(1_600_000_000), ticks_per_second(1_600_000_000_000)
    (1, 1000)
    """
    return next((ticks for limit, ticks in _LIMITS if abs(time) < limit), 10**9)
