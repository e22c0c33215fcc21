"""Quadratic losses of ids: rows, reassignment and splits without a pass over the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.cel.reassignment import best_columns
from celrec.embeddings.clustered import ClusteredEmbedding

_NUMBERS = 1 << 23  # that are made of ids and rows at a time
_ROUNDING = 1e-6  # of rows in single precision


class MemberSource(Protocol):
    """Quadratic losses of members that can be had for some of them at a time."""

    def at(self, members: Tensor) -> MemberQuadratics:
        """Those of some members, in double precision."""


class MemberQuadratics(ABC):
    """L_j(v) = ½·vᵀ·H_j·v − q_jᵀ·v, the loss of member j at the vector v, for many members."""

    @property
    @abstractmethod
    def linear(self) -> Tensor:
        """q_j, of shape (members, dim)."""

    @abstractmethod
    def at(self, members: Tensor) -> MemberQuadratics:
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

    def at(self, members: Tensor) -> Quadratics:
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


@dataclass(frozen=True, slots=True)
class SharedQuadratics(MemberQuadratics):
    """Quadratics with H_j = weight_j · metric: one metric, and a point where each loss is least.

    The best row of a cluster is the weighted mean of its members' points, and reassignment is
    a step of k-means in the metric.

    >>> points = torch.tensor([[1.0, 0], [3, 0], [0, 4]])
    >>> members = SharedQuadratics(torch.tensor([3.0, 1, 1]), torch.eye(2), points)
    >>> matrices, right = members.sums(torch.tensor([0, 0, 1]), 2)
    >>> torch.linalg.solve(matrices, right)
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

    def at(self, members: Tensor) -> SharedQuadratics:
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
        weights = self.weight.new_zeros(count).index_add_(0, assignment, self.weight)
        points = self.points.new_zeros(count, self.points.shape[1])
        points.index_add_(0, assignment, self.weight[:, None] * self.points)
        return weights[:, None, None] * self.metric, points @ self.metric


class QuadraticEvidence(Evidence):
    """Evidence from the quadratics of all ids: exact losses and gradients, without their data.

    Some ids are looked at at a time, so that memory does not grow with ids times clusters, and
    quadratics may be made when they are asked for.
    """

    def __init__(
        self, table: ClusteredEmbedding, interactions: Tensor, columns: slice = slice(None)
    ) -> None:
        """`columns` are those of the members' vectors that `table` has rows for."""
        self._table, self._interactions, self._columns = table, interactions, columns
        self.members: MemberSource | None = None
        """As of the last update; there is no evidence before it."""
        self.others: Callable[[Tensor], Tensor] | None = None
        """What is added to the rows of ids by other tables, if there are any."""
        self.non_negative = False
        """Whether no sum of a row and what others add may be below 0."""

    def interactions(self) -> Tensor:
        """The number of interactions of each id, as given."""
        return self._interactions

    def gradients(self, members: Tensor) -> Tensor:
        return self._beside(members).gradients(self._vectors(members))

    def losses(self) -> Tensor:
        """L_j of every id under the row of every cluster; infinite below its bounds."""
        return torch.cat([self._losses(ids) for ids in self._blocks()])

    def best_clusters(self, current: Tensor) -> tuple[Tensor, Tensor]:
        parts = [best_columns(self._losses(ids), current[ids]) for ids in self._blocks()]
        cluster, gain = zip(*parts, strict=True)
        return torch.cat(cluster), torch.cat(gain)

    def own_losses(self) -> Tensor:
        """L_j of every id under the row of its own cluster."""
        found = []
        for ids in self._blocks():
            vectors, members = self._vectors(ids), self._beside(ids)
            found.append(-(vectors * (members.linear + members.gradients(vectors))).sum(1) / 2)
        return torch.cat(found)

    def gains(self) -> Tensor:
        """How far each id's loss would fall if it had a row of its own."""
        found = []
        for ids in self._blocks():
            members = self._beside(ids)
            found.append(members.gains(members.gradients(self._vectors(ids))))
        return torch.cat(found)

    @torch.no_grad()
    def solve_rows(self, passes: int = 10) -> None:
        """Give each cluster the best row for its members; `passes` are those over columns."""
        table, count = self._table, self._table.num_clusters
        rows = table.weight[:count].double()
        matrices = right = lowest = None
        for ids in self._blocks():
            assignment = table.assignment[ids].long()
            sums = self._beside(ids).sums(assignment, count)
            matrices = sums[0] if matrices is None else matrices.add_(sums[0])
            right = sums[1] if right is None else right.add_(sums[1])
            if self.non_negative:
                bounds = self._bounds(ids)
                lowest = torch.full_like(rows, -torch.inf) if lowest is None else lowest
                index = assignment[:, None].expand_as(bounds)
                lowest.scatter_reduce_(0, index, bounds.to(lowest), "amax")
        assert matrices is not None  # noqa: S101  (there is an id)
        assert right is not None  # noqa: S101
        if lowest is None:
            rows = torch.linalg.solve(matrices, right)
        else:
            rows = bounded_rows(matrices, right, rows, lowest, passes)
        table.weight[:count] = rows.to(table.weight)

    def _blocks(self) -> list[Tensor]:
        number = self._table.num_embeddings
        size = max(1, _NUMBERS // max(self._table.num_clusters, self._table.embedding_dim))
        return list(torch.split(torch.arange(number), size))

    def _beside(self, ids: Tensor) -> MemberQuadratics:
        """The losses of some ids in the row of this table."""
        assert self.members is not None  # noqa: S101  (there was an update)
        members = self.members.at(ids)
        return members if self.others is None else members.beside(self.others(ids), self._columns)

    def _bounds(self, ids: Tensor) -> Tensor:
        if self.others is None:
            return self._table.weight.new_zeros(len(ids), self._table.embedding_dim)
        return -self.others(ids)[:, self._columns]

    def _losses(self, ids: Tensor) -> Tensor:
        members = self._beside(ids)
        rows = self._table.weight[: self._table.num_clusters].detach().double()
        losses = members.losses(rows)
        if self.non_negative:
            for column, bounds in enumerate(self._bounds(ids).T):
                below = rows[:, column] < bounds[:, None] - _ROUNDING
                losses.masked_fill_(below, torch.inf)
        return losses

    def _vectors(self, ids: Tensor) -> Tensor:
        return self._table.weight.detach()[self._table.assignment[ids].long()].double()


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return torch.bmm(matrices, vectors[:, :, None])[:, :, 0]


def bounded_rows(
    matrices: Tensor, right: Tensor, rows: Tensor, lowest: Tensor | float, passes: int
) -> Tensor:
    """The least ½·xᵀMx − rᵀx of each matrix that is not below `lowest`, by coordinate descent.

    It goes `passes` times over the columns, from `rows` on.
    """
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
