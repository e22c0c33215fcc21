"""Clusters for a trained table of a row per id."""

from __future__ import annotations

import torch
from torch import Tensor

from celrec.cel.reassignment import Reassignment, best_columns
from celrec.cel.split import Members, Splitter, choose_cluster
from celrec.errors import CelrecError

_ROUNDS = 10  # of reassignments after the last split
_BLOCK = 1 << 22  # distances in memory at once
_ALWAYS = Reassignment(keep=0.0)


@torch.no_grad()
def learned_clusters(
    vectors: Tensor, clusters: int, interactions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The cluster of each vector and the row of each cluster, by the steps of CEL.

    The loss is Σ_j n_j ‖v_j − B(j)‖² with n_j the interactions of id j, so its gradient is the
    deviation n_j (v_j − B(j)). Clusters with the highest loss are split by GPCA, members are
    reassigned to the nearest row, and a row is the mean of its members.

    >>> vectors = torch.tensor([[0.0], [0.1], [5.0], [5.1], [9.0]])
    >>> assignment, rows = learned_clusters(vectors, 3)
    >>> assignment.tolist(), [round(row, 2) for row in rows.flatten().tolist()]
    ([0, 0, 1, 1, 2], [0.05, 5.05, 9.0])
    """
    if not 1 <= clusters <= len(vectors):
        raise CelrecError(f"clusters must lie in 1 … {len(vectors):,} (the ids), not {clusters}")
    if not bool(vectors.isfinite().all()):
        raise CelrecError("vectors must be finite; a table that diverged cannot be clustered")
    if clusters == len(vectors):
        return torch.arange(clusters, device=vectors.device), vectors.clone()
    points = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    clustering = _Clustering(points, _weights(interactions, points))
    targets = [clusters]
    while targets[-1] > 1:
        targets.append((targets[-1] + 1) // 2)
    for target in reversed(targets):
        clustering.split(target)
        for _ in range(_ROUNDS if target == clusters else 1):
            if not clustering.reassign():
                break
    return clustering.assignment, clustering.rows.to(vectors.dtype)


_SWEEPS = 10  # over all levels after the last is learned


@torch.no_grad()
def learned_levels(
    vectors: Tensor, clusters: int, levels: int, interactions: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """`learned_clusters` of several levels, whose rows are added up.

    Each level is learned from what the levels before it leave of the vectors. Then the members of
    each level in turn are reassigned, and its rows made means anew, while the others stay. This
    never raises the loss.

    >>> vectors = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> (coarse, rows), (fine, more) = learned_levels(vectors, 2, 2)
    >>> (rows[coarse] + more[fine]).flatten().tolist()
    [0.0, 1.0, 10.0, 11.0]
    """
    left = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    weights, clusterings = _weights(interactions, left), []
    for _ in range(levels):
        assignment, rows = learned_clusters(left, clusters, interactions)
        clusterings.append(_Clustering(left, weights, assignment, rows))
        left = left - rows[assignment]
    for _ in range(_SWEEPS if levels > 1 else 0):
        moved = False
        for clustering in clusterings:
            clustering.points = left + clustering.rows[clustering.assignment]
            moved |= clustering.reassign()
            left = clustering.points - clustering.rows[clustering.assignment]
        if not moved:
            break
    return [(one.assignment, one.rows.to(vectors.dtype)) for one in clusterings]


class _Clustering:
    """Clusters of weighted points, and the means of their members."""

    def __init__(
        self,
        points: Tensor,
        weights: Tensor,
        assignment: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> None:
        """Begin with one cluster, or with those given."""
        self.points, self._weights, self.count = points, weights, 1
        self.assignment = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        if assignment is None or rows is None:
            self.rows = self._means()
        else:
            self.assignment, self.rows, self.count = assignment, rows, len(rows)

    def split(self, target: int) -> None:
        """Split the cluster with the highest loss, until there are `target` clusters."""
        sizes = torch.zeros(target, dtype=torch.int64)
        sizes[: self.count] = torch.bincount(self.assignment, minlength=self.count)
        order = self.assignment.argsort(stable=True)
        members = list(torch.split(order, sizes[: self.count].tolist()))
        rows, losses = list(self.rows), torch.zeros(target, dtype=torch.float64)
        for cluster, ids in enumerate(members):
            losses[cluster] = self._loss(ids, rows[cluster])
        splitter, generator = Splitter(), torch.Generator()
        while self.count < target:
            chosen = choose_cluster(losses[: self.count], sizes[: self.count])
            if chosen is None:
                break
            ids, new = members[chosen], self.count
            pulls = self._weights[ids, None] * (self.points[ids] - rows[chosen])
            leaving = splitter.leaving(Members(pulls, self._weights[ids]), generator)
            members[chosen] = ids[~leaving]
            members.append(ids[leaving])
            rows.append(rows[chosen])
            for child in (chosen, new):
                sizes[child], rows[child] = len(members[child]), self._mean(members[child])
                losses[child] = self._loss(members[child], rows[child])
            self.assignment[members[new]] = new
            self.count += 1
        self.rows = torch.stack(rows)

    def reassign(self) -> bool:
        """Move each point to the nearest row; whether any moved."""
        parts = zip(
            *(
                torch.split(one, max(1, _BLOCK // self.count))
                for one in (self.points, self.assignment)
            ),
            strict=True,
        )
        squares = self.rows.square().sum(1)
        nearest = torch.cat(
            [best_columns(squares - 2 * some @ self.rows.T, own)[0] for some, own in parts]
        )
        # The products above are inexact; a point moves only if its exact distance gets less.
        gain = self._distance(self.assignment) - self._distance(nearest)
        after = _ALWAYS.move(nearest, gain, self.assignment, self._weights)
        moved = not torch.equal(after, self.assignment)
        self.assignment = after
        self.rows = self._means()
        return moved

    def _distance(self, cluster: Tensor) -> Tensor:
        return (self.points - self.rows[cluster]).square().sum(1)

    def _loss(self, ids: Tensor, row: Tensor) -> Tensor:
        return self._weights[ids] @ (self.points[ids] - row).square().sum(1)

    def _mean(self, ids: Tensor) -> Tensor:
        # As deviations from one member, so that the mean of equal vectors is that very vector.
        base = self.points[ids[0]]
        weights = self._weights[ids]
        return base + weights @ (self.points[ids] - base) / weights.sum()

    def _means(self) -> Tensor:
        ids = self.assignment.argsort(stable=True)
        sizes = torch.bincount(self.assignment, minlength=self.count).tolist()
        return torch.stack([self._mean(some) for some in torch.split(ids, sizes)])


def _weights(interactions: Tensor | None, vectors: Tensor) -> Tensor:
    if interactions is None:
        return vectors.new_ones(len(vectors))
    if interactions.shape != (len(vectors),):
        raise CelrecError(
            f"interactions must have one number per id ({len(vectors):,}), "
            f"not shape {tuple(interactions.shape)}"
        )
    counts = interactions.to(vectors.device, torch.float64)
    if not bool(counts.isfinite().all()) or bool((counts < 0).any()) or not bool(counts.any()):
        raise CelrecError("interactions must be finite, not negative, and not all 0")
    # Ids without interactions have next to no weight, but a cluster of them still has a mean.
    return counts.clamp(min=1e-6 * float(counts.mean())).to(vectors.dtype)
