"""Centroids of many vectors."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

_CELLS = 2**22
"""Distances that are held at once."""


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
    chances = points.new_ones(len(points), dtype=torch.float64)
    distance = torch.full_like(chances, torch.inf)
    centroids = points.new_empty(clusters, points.shape[1])
    for number, draw in enumerate(draws):
        edges = chances.cumsum(0)
        drawn = torch.searchsorted(edges, draw * edges[-1], right=True).clamp(max=len(points) - 1)
        centroids[number] = points[drawn]
        distance = torch.minimum(distance, (points - points[drawn]).square().sum(1).double())
        chances = distance
    return centroids


def nearest(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point, and the square of its distance."""
    size = max(1, _CELLS // len(centroids))
    norms = centroids.square().sum(1)
    found = [
        torch.addmm(norms, part, centroids.t(), alpha=-2).min(1)
        for part in torch.split(points, size)
    ]
    cluster = torch.cat([part.indices for part in found])
    distance = torch.cat([part.values for part in found]) + points.square().sum(1)
    return cluster, distance
