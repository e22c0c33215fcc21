"""Centroids of many vectors."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from celrec.embeddings._lloyd_kernels import draw_apart, find_nearest

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
