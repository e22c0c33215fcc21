"""Looking beyond the values that a setting is chosen among."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def widened(
    values: Sequence[float],
    further: Sequence[float],
    best: Callable[[Sequence[float]], float | None],
) -> list[float]:
    """`values`, and those of `further` beyond either end as long as the last one is the best.

    `best` tells which of some values is the best, None if that is not known of all of them yet:
    then these are to be found out about first.

    >>> widened([1, 2, 4], [0.25, 0.5, 8, 16], best=max)
    [1, 2, 4, 8, 16]
    >>> widened([1, 2, 4], [0.25, 0.5, 8, 16], best=lambda tried: 4)
    [1, 2, 4, 8]
    >>> widened([1, 2, 4], [0.25, 0.5, 8, 16], best=lambda tried: None)
    [1, 2, 4]
    """
    tried = list(values)
    above = sorted(value for value in further if value > max(values))
    below = sorted((value for value in further if value < min(values)), reverse=True)
    while True:
        found = best(tried)
        if above and found == max(tried):
            tried.append(above.pop(0))
        elif below and found == min(tried):
            tried.append(below.pop(0))
        else:
            return tried
