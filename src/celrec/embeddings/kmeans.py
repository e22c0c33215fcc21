"""k-means: k-means++ initialisation, Lloyd's algorithm and nearest centroids."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

Numbers = NDArray[np.floating[Any]]


@numba.njit(cache=True, nogil=True)
def draw_apart(points: Numbers, first: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """k-means++: point `first`, and one more point per draw, a number in [0, 1).

    Probabilities are proportional to the squared distance from the nearest point drawn before.
    """
    count, width = points.shape
    distance, drawn = np.full(count, np.inf), np.empty(len(draws) + 1, np.int64)
    total = 0.0
    for number in range(len(drawn)):
        chosen = first
        if number:
            goal, reached, chosen = draws[number - 1] * total, 0.0, count - 1
            for row in range(count):
                reached += distance[row]
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
    """The nearest centroid of each point (ties: the first) and its squared distance.

    `order` sorts the centroids along `axis`. The search starts at the point's place in that order
    and goes both ways until the distance along the axis exceeds the best distance. For short
    vectors it visits a few hundred of many thousand centroids.
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


CELLS = 2**20
"""Distances in memory at once."""
_SHORT = 3  # dimensions up to which a search along one axis is fast


@torch.no_grad()
def k_means(points: Tensor, clusters: int, generator: Generator, steps: int = 20) -> Tensor:
    """k-means by Lloyd's algorithm with k-means++ initialisation; returns `clusters` centroids.

    >>> points = torch.tensor([[0.0], [1.0], [9.0], [11.0]])
    >>> k_means(points, 2, Generator().manual_seed(0)).sort(0).values.flatten().tolist()
    [0.5, 10.0]
    """
    draws = torch.rand(clusters, generator=generator, device=points.device, dtype=torch.float64)
    return lloyd(points, draw_start(points, int(draws[0] * len(points)), draws[1:]), steps)


@torch.no_grad()
def lloyd(points: Tensor, centroids: Tensor, steps: int = 20) -> Tensor:
    """Lloyd's algorithm from given centroids, until no point changes its cluster.

    A centroid without points keeps its place. With fewer distinct points than clusters, some
    centroids are equal.
    """
    clusters, before = len(centroids), None
    for _ in range(steps):
        cluster, _ = nearest(points, centroids)
        if before is not None and torch.equal(cluster, before):
            break
        before = cluster
        sizes = torch.bincount(cluster, minlength=clusters).unsqueeze(1)
        sums = torch.zeros_like(centroids).index_add_(0, cluster, points)
        centroids = torch.where(sizes > 0, sums / sizes, centroids)
    return centroids


def draw_start(points: Tensor, first: int, draws: Tensor) -> Tensor:
    """The initial centroids of k-means++: point `first`, and one point per draw in [0, 1)."""
    drawn = draw_apart(_wide_array(points), first, draws.cpu().numpy())
    return points[torch.from_numpy(drawn).to(points.device)]


def nearest(points: Tensor, centroids: Tensor, *, exact: bool = False) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point, and the squared distance to it.

    With `exact`, distances are computed from differences, since products lose precision for
    vectors far from 0.
    """
    if exact:
        return _nearest_by_differences(points, centroids)
    if points.shape[1] > _SHORT:
        return _nearest_of_all(points, centroids)
    axis = int((centroids.amax(0) - centroids.amin(0)).argmax())
    order = centroids[:, axis].argsort(stable=True).cpu().numpy()
    found = find_nearest(_wide_array(points), _wide_array(centroids), axis, order)
    cluster, distance = (torch.from_numpy(one).to(points.device) for one in found)
    return cluster, distance.to(points.dtype)


def _wide_array(vectors: Tensor) -> Numbers:
    """Vectors for a kernel, in at least single precision: numba has no half precision."""
    array: Numbers = vectors.to(torch.promote_types(vectors.dtype, torch.float32)).cpu().numpy()
    return array


def _nearest_of_all(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    size = max(1, CELLS // len(centroids))
    norms = centroids.square().sum(1)
    found = [
        torch.addmm(norms, part, centroids.t(), alpha=-2).min(1)
        for part in torch.split(points, size)
    ]
    cluster = torch.cat([part.indices for part in found])
    distance = torch.cat([part.values for part in found]) + points.square().sum(1)
    return cluster, distance


def _nearest_by_differences(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(points.dtype, torch.float32)
    size = max(1, CELLS // len(centroids))
    found = [
        torch.cdist(
            part.to(wide), centroids.to(wide), compute_mode="donot_use_mm_for_euclid_dist"
        ).min(1)
        for part in torch.split(points, size)
    ]
    cluster = torch.cat([part.indices for part in found])
    return cluster, torch.cat([part.values for part in found]).square()
