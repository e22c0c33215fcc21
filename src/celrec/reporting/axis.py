"""Where numbers stand in a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers from `low` to `high` on a line from `start` to `end`, with round ones marked.

    >>> axis = Axis.over([0.83, 1.12], 100, 0)
    >>> axis.ticks
    (0.8, 0.9, 1.0, 1.1, 1.2)
    >>> axis.at(0.8), axis.at(1.2), axis.label(0.9)
    (100.0, 0.0, '0.9')
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        start: float,
        end: float,
        *,
        most: int = 5,
        tight: bool = False,
    ) -> Axis:
        """An axis that holds all finite values, with no more than about `most` marks.

        It begins and ends at marks, or with `tight` at the values themselves.
        """
        finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if high - low < 1e-9 * max(abs(high), 1e-9):
            low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
        step = _round_step((high - low) / most)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        digits = max(0, 2 - math.floor(math.log10(step)))
        ticks = tuple(round(number * step, digits) for number in range(first, last + 1))
        if tight:
            ticks = tuple(tick for tick in ticks if low <= tick <= high)
            return cls(low, high, start, end, ticks)
        return cls(ticks[0], ticks[-1], start, end, ticks)

    def at(self, value: float) -> float:
        """Where a number stands."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def label(self, tick: float) -> str:
        """A mark in words, with as many digits as all of them need."""
        if all(float(one).is_integer() for one in self.ticks):
            return f"{tick:,.0f}"
        digits = max(len(f"{one:.6g}".partition(".")[2]) for one in self.ticks)
        return f"{tick:,.{digits}f}"


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
