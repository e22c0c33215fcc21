"""Quadratic losses of ids: rows, reassignment and splits without a pass over the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.cel.reassignment import best_columns
from celrec.embeddings.clustered import ClusteredEmbedding

_PAIRS = 1 << 24  # of ids and rows whose losses are in memory at a time
_ROUNDING = 1e-6  # of rows in single precision


class MemberQuadratics(ABC):
    """L_j(v) = ½·vᵀ·H_j·v − q_jᵀ·v, the loss of member j at the vector v, for many members."""

    @property
    @abstractmethod
    def linear(self) -> Tensor:
        """q_j, of shape (members, dim)."""

    @abstractmethod
    def at(self, members: Tensor | slice) -> MemberQuadratics:
        """Those of some members."""

    @abstractmethod
    def beside(self, vectors: Tensor, columns: slice) -> MemberQuadratics:
        """L_j(vectors_j + x) of vectors x that are 0 outside some columns, up to a constant."""

    @abstractmethod
    def gradients(self, vectors: Tensor) -> Tensor:
        """q_j − H_j·v_j, the negative gradient of each member's loss at its vector."""

    @abstractmethod
    def losses(self, rows: Tensor) -> Tensor:
        """L_j under each of some rows: two matrix products for all members and rows."""

    @abstractmethod
    def gains(self, gradients: Tensor) -> Tensor:
        """gᵀ·H⁻¹·g/2, the decrease of each member's loss if it had a row of its own."""

    @abstractmethod
    def sums(self, assignment: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Σ H_j and Σ q_j over the members of each of `count` clusters."""

    def rows(self, assignment: Tensor, count: int) -> Tensor:
        """The best row of each cluster: (Σ H_j)⁻¹·Σ q_j over its members."""
        rows: Tensor = torch.linalg.solve(*self.sums(assignment, count))
        return rows

    def bounded_rows(
        self, assignment: Tensor, rows: Tensor, lowest: Tensor | float, passes: int
    ) -> Tensor:
        """The best rows that are not below `lowest`, by coordinate descent from `rows`."""
        matrices, right = self.sums(assignment, len(rows))
        rows = rows.clone()
        lowest = torch.as_tensor(lowest).to(rows).expand_as(rows)
        slopes = _times(matrices, rows) - right
        for _ in range(passes):
            for column in range(rows.shape[1]):
                change = -slopes[:, column] / matrices[:, column, column]
                change = torch.maximum(change, lowest[:, column] - rows[:, column])
                rows[:, column] += change
                slopes += change[:, None] * matrices[:, column]
        return rows


@dataclass(frozen=True, slots=True)
class Quadratics(MemberQuadratics):
    """Quadratics with a curvature of each member's own.

    For least squares, H_j = Σ E[a·aᵀ]/σ² + Λ and q_j = Σ r·E[a]/σ² over the interactions of j
    with partners a, targets r and noise σ²; Λ is the precision of the members' prior
    N(0, Λ⁻¹). With few interactions the curvature is small and the prior dominates; with many,
    the data do.

    >>> members = Quadratics(torch.eye(2).repeat(3, 1, 1), torch.tensor([[1.0, 0], [1, 0], [0, 4]]))
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 4.0]])
    >>> members.losses(rows).argmin(1)
    tensor([0, 0, 1])
    """

    curvature: Tensor
    """H_j, of shape (members, dim, dim)."""
    linear: Tensor

    def at(self, members: Tensor | slice) -> Quadratics:
        return Quadratics(self.curvature[members], self.linear[members])

    def beside(self, vectors: Tensor, columns: slice) -> Quadratics:
        linear = self.gradients(vectors)[:, columns]
        return Quadratics(self.curvature[:, columns, columns], linear)

    def gradients(self, vectors: Tensor) -> Tensor:
        return self.linear - _times(self.curvature, vectors)

    def losses(self, rows: Tensor) -> Tensor:
        squares = (rows[:, :, None] * rows[:, None, :]).flatten(1)
        losses: Tensor = self.curvature.flatten(1) @ squares.T / 2 - self.linear @ rows.T
        return losses

    def gains(self, gradients: Tensor) -> Tensor:
        half: Tensor = torch.linalg.solve_triangular(
            torch.linalg.cholesky(self.curvature), gradients[:, :, None], upper=False
        )
        gains: Tensor = half.square().sum((1, 2)) / 2
        return gains

    def sums(self, assignment: Tensor, count: int) -> tuple[Tensor, Tensor]:
        dim = self.linear.shape[1]
        matrices = self.curvature.new_zeros(count, dim, dim)
        right = self.linear.new_zeros(count, dim)
        matrices.index_add_(0, assignment, self.curvature)
        return matrices, right.index_add_(0, assignment, self.linear)

    def row_covariances(self, assignment: Tensor, count: int) -> Tensor:
        """(Σ H_j)⁻¹, the posterior covariance of the best row of each cluster."""
        covariances: Tensor = torch.linalg.inv(self.sums(assignment, count)[0])
        return covariances


@dataclass(frozen=True, slots=True)
class SharedQuadratics(MemberQuadratics):
    """Quadratics with H_j = weight_j · metric: one metric, and a point where each loss is least.

    The best row of a cluster is the weighted mean of its members' points, and reassignment is
    a step of k-means in the metric.

    >>> points = torch.tensor([[1.0, 0], [3, 0], [0, 4]])
    >>> members = SharedQuadratics(torch.tensor([3.0, 1, 1]), torch.eye(2), points)
    >>> members.rows(torch.tensor([0, 0, 1]), 2)
    tensor([[1.5000, 0.0000],
            [0.0000, 4.0000]])
    """

    weight: Tensor
    """Of each member."""
    metric: Tensor
    """A symmetric positive definite matrix, dim × dim."""
    points: Tensor
    """H_j⁻¹·q_j, of shape (members, dim)."""

    @property
    def linear(self) -> Tensor:
        return self.weight[:, None] * (self.points @ self.metric)

    def at(self, members: Tensor | slice) -> SharedQuadratics:
        return SharedQuadratics(self.weight[members], self.metric, self.points[members])

    def beside(self, vectors: Tensor, columns: slice) -> SharedQuadratics:
        rest = self.points - vectors
        if columns == slice(0, rest.shape[1]):
            return SharedQuadratics(self.weight, self.metric, rest)
        metric = self.metric[columns, columns]
        points = torch.linalg.solve(metric, (rest @ self.metric[:, columns]).T).T
        return SharedQuadratics(self.weight, metric, points)

    def gradients(self, vectors: Tensor) -> Tensor:
        return self.weight[:, None] * ((self.points - vectors) @ self.metric)

    def losses(self, rows: Tensor) -> Tensor:
        along = rows @ self.metric
        losses: Tensor = (rows * along).sum(1) / 2 - self.points @ along.T
        return losses.mul_(self.weight[:, None])

    def gains(self, gradients: Tensor) -> Tensor:
        steps = torch.linalg.solve(self.metric, gradients.T).T
        gains: Tensor = (gradients * steps).sum(1) / (2 * self.weight)
        return gains

    def sums(self, assignment: Tensor, count: int) -> tuple[Tensor, Tensor]:
        weights, points = self._weighted(assignment, count)
        return weights[:, None, None] * self.metric, points @ self.metric

    def rows(self, assignment: Tensor, count: int) -> Tensor:
        weights, points = self._weighted(assignment, count)
        return points / weights[:, None]

    def _weighted(self, assignment: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The weights of each cluster, and the weighted points."""
        weights = self.weight.new_zeros(count).index_add_(0, assignment, self.weight)
        points = self.points.new_zeros(count, self.points.shape[1])
        return weights, points.index_add_(0, assignment, self.weight[:, None] * self.points)


class QuadraticEvidence(Evidence):
    """Evidence from the quadratics of all ids: exact losses and gradients, without their data."""

    def __init__(self, table: ClusteredEmbedding, interactions: Tensor) -> None:
        self._table, self._interactions = table, interactions
        self.members: MemberQuadratics | None = None
        """As of the last update; there is no evidence before it."""
        self.lowest: Tensor | None = None
        """The least values that the row of each id may have, if rows are bounded."""

    def interactions(self) -> Tensor:
        """The number of interactions of each id, as given."""
        return self._interactions

    def gradients(self, members: Tensor) -> Tensor:
        return self._known().at(members).gradients(self._vectors(members))

    def losses(self) -> Tensor:
        """L_j of every id under the row of every cluster; infinite below its bounds."""
        return self._losses(slice(None))

    def best_clusters(self, current: Tensor) -> tuple[Tensor, Tensor]:
        """Some ids at a time, so that memory does not grow with ids times clusters."""
        size = max(1, _PAIRS // max(self._table.num_clusters, 1))
        parts = [
            best_columns(self._losses(slice(start, start + size)), current[start : start + size])
            for start in range(0, len(current), size)
        ]
        cluster, gain = zip(*parts, strict=True)
        return torch.cat(cluster), torch.cat(gain)

    def own_losses(self) -> Tensor:
        """L_j of every id under the row of its own cluster."""
        vectors = self._vectors(slice(None))
        linear = self._known().linear
        return -(vectors * (linear + self._known().gradients(vectors))).sum(1) / 2

    def gains(self) -> Tensor:
        """How far each id's loss would fall if it had a row of its own."""
        known = self._known()
        return known.gains(known.gradients(self._vectors(slice(None))))

    def _losses(self, members: slice) -> Tensor:
        known = self._known().at(members)
        rows = self._table.weight[: self._table.num_clusters].detach().to(known.linear)
        losses = known.losses(rows)
        if self.lowest is not None:
            lowest = self.lowest[members]
            for column in range(rows.shape[1]):
                below = rows[:, column] < lowest[:, column, None] - _ROUNDING
                losses.masked_fill_(below, torch.inf)
        return losses

    def _known(self) -> MemberQuadratics:
        assert self.members is not None  # noqa: S101  (the solver has made a step)
        return self.members

    def _vectors(self, members: Tensor | slice) -> Tensor:
        own = self._table.assignment[:-1][members].long()
        return self._table.weight.detach()[own].to(self._known().linear)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return torch.bmm(matrices, vectors[:, :, None])[:, :, 0]
