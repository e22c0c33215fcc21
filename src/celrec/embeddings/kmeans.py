"""k-means: centroids of many vectors."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

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


_CELLS = 2**20
"""Distances that are held at once."""
_SHORT = 3  # up to which one axis tells enough of where vectors are


@torch.no_grad()
def lloyd(points: Tensor, clusters: int, generator: Generator, steps: int = 20) -> Tensor:
    """k-means by Lloyd's steps from a start as in k-means++; `clusters` × dim centroids.

    A centroid that is nearest to no point stays where it is. Where there are fewer
    different points than clusters, some centroids are the same.

    >>> points = torch.tensor([[0.0], [1.0], [9.0], [11.0]])
    >>> lloyd(points, 2, Generator().manual_seed(0)).sort(0).values.flatten().tolist()
    [0.5, 10.0]
    """
    centroids = _spread(points, clusters, generator)
    before = None
    for _ in range(steps):
        cluster, _ = nearest(points, centroids)
        if before is not None and torch.equal(cluster, before):
            break
        before = cluster
        sizes = torch.bincount(cluster, minlength=clusters).unsqueeze(1)
        sums = torch.zeros_like(centroids).index_add_(0, cluster, points)
        centroids = torch.where(sizes > 0, sums / sizes, centroids)
    return centroids


def _spread(points: Tensor, clusters: int, generator: Generator) -> Tensor:
    """Points drawn one by one, by the square of their distance from those already drawn."""
    draws = torch.rand(clusters, generator=generator, device=points.device, dtype=torch.float64)
    drawn = draw_apart(points.cpu().numpy(), draws.cpu().numpy())
    return points[torch.from_numpy(drawn).to(points.device)]


def nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point, and the square of its distance."""
    if points.shape[1] > _SHORT:
        return _nearest_of_all(points, centroids)
    axis = int((centroids.amax(0) - centroids.amin(0)).argmax())
    order = centroids[:, axis].argsort(stable=True).cpu().numpy()
    found = find_nearest(points.cpu().numpy(), centroids.cpu().numpy(), axis, order)
    cluster, distance = (torch.from_numpy(one).to(points.device) for one in found)
    return cluster, distance.to(points.dtype)


def _nearest_of_all(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    size = max(1, _CELLS // len(centroids))
    norms = centroids.square().sum(1)
    found = [
        torch.addmm(norms, part, centroids.t(), alpha=-2).min(1)
        for part in torch.split(points, size)
    ]
    cluster = torch.cat([part.indices for part in found])
    distance = torch.cat([part.values for part in found]) + points.square().sum(1)
    return cluster, distance
