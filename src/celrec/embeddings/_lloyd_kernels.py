"""The loops of k-means, in machine code."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]


@numba.njit(cache=True, nogil=True)
def draw_apart(points: Numbers, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Points drawn one by one, by the square of their distance from those already drawn."""
    count, width = points.shape
    distance, drawn = np.full(count, np.inf), np.empty(len(draws), np.int64)
    total = float(count)
    for number in range(len(draws)):
        goal, reached, chosen = draws[number] * total, 0.0, count - 1
        for row in range(count):
            reached += distance[row] if number else 1.0
            if reached > goal:
                chosen = row
                break
        drawn[number] = chosen
        total = 0.0
        for row in range(count):
            square = 0.0
            for d in range(width):
                square += (points[row, d] - points[chosen, d]) ** 2
            distance[row] = min(distance[row], square)
            total += distance[row]
    return drawn


@numba.njit(cache=True, nogil=True)
def find_nearest(
    points: Numbers, centroids: Numbers, axis: int, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The nearest centroid of each point, the first of equals, and the square of its distance.

    `order` is that of the centroids along an axis. From where a point is among them, one looks
    both ways until the axis alone is further than the nearest so far: a few hundred of many
    thousands, where vectors are short.
    """
    count, width = points.shape
    nearest, distance = np.empty(count, np.int64), np.empty(count, np.float64)
    rows = centroids[order]
    along = np.ascontiguousarray(rows[:, axis])
    for row in range(count):
        own = points[row, axis]
        above = np.searchsorted(along, own)
        below, best, least = above - 1, -1, np.inf
        while True:
            if above == len(along) and below < 0:
                break
            up = (along[above] - own) ** 2 if above < len(along) else np.inf
            down = (along[below] - own) ** 2 if below >= 0 else np.inf
            if min(up, down) > least:
                break
            if below < 0 or (above < len(along) and up <= down):
                place = above
                above += 1
            else:
                place = below
                below -= 1
            square = 0.0
            for d in range(width):
                square += (points[row, d] - rows[place, d]) ** 2
            if square < least or (square == least and order[place] < best):
                least, best = square, int(order[place])
        nearest[row] = max(best, 0)
        distance[row] = least
    return nearest, distance
