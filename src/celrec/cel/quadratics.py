"""Quadratic losses of ids: rows, reassignment and splits without a pass over the data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.embeddings.clustered import ClusteredEmbedding


@dataclass(frozen=True, slots=True)
class Quadratics:
    """L_j(v) = ½·vᵀ·H_j·v − q_jᵀ·v, the loss of member j at the vector v, for many members.

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
    """q_j, of shape (members, dim)."""

    def gradients(self, vectors: Tensor) -> Tensor:
        """q_j − H_j·v_j, the negative gradient of each member's loss at its vector."""
        return self.linear - _times(self.curvature, vectors)

    def losses(self, rows: Tensor) -> Tensor:
        """L_j under each of some rows: two matrix products for all members and rows."""
        squares = (rows[:, :, None] * rows[:, None, :]).flatten(1)
        losses: Tensor = self.curvature.flatten(1) @ squares.T / 2 - self.linear @ rows.T
        return losses

    def rows(self, assignment: Tensor, count: int) -> Tensor:
        """The best row of each cluster: (Σ H_j)⁻¹·Σ q_j over its members."""
        rows: Tensor = torch.linalg.solve(*self._sums(assignment, count))
        return rows

    def non_negative_rows(self, assignment: Tensor, rows: Tensor, passes: int) -> Tensor:
        """The best non-negative rows, by coordinate descent from `rows`."""
        matrices, right = self._sums(assignment, len(rows))
        rows = rows.clone()
        slopes = _times(matrices, rows) - right
        for _ in range(passes):
            for column in range(rows.shape[1]):
                change = -slopes[:, column] / matrices[:, column, column]
                change = change.clamp(min=-rows[:, column])
                rows[:, column] += change
                slopes += change[:, None] * matrices[:, column]
        return rows

    def row_covariances(self, assignment: Tensor, count: int) -> Tensor:
        """(Σ H_j)⁻¹, the posterior covariance of the best row of each cluster."""
        covariances: Tensor = torch.linalg.inv(self._sums(assignment, count)[0])
        return covariances

    def _sums(self, assignment: Tensor, count: int) -> tuple[Tensor, Tensor]:
        dim = self.linear.shape[1]
        matrices = self.curvature.new_zeros(count, dim, dim)
        right = self.linear.new_zeros(count, dim)
        matrices.index_add_(0, assignment, self.curvature)
        return matrices, right.index_add_(0, assignment, self.linear)

    def gains(self, gradients: Tensor) -> Tensor:
        """gᵀ·H⁻¹·g/2, the decrease of each member's loss if it had a row of its own."""
        half: Tensor = torch.linalg.solve_triangular(
            torch.linalg.cholesky(self.curvature), gradients[:, :, None], upper=False
        )
        gains: Tensor = half.square().sum((1, 2)) / 2
        return gains


class QuadraticEvidence(Evidence):
    """Evidence from the quadratics of all ids: exact losses and gradients, without their data."""

    def __init__(self, table: ClusteredEmbedding, interactions: Tensor) -> None:
        self._table, self._interactions = table, interactions
        self.members: Quadratics | None = None
        """As of the last update; there is no evidence before it."""

    def interactions(self) -> Tensor:
        """The number of interactions of each id, as given."""
        return self._interactions

    def gradients(self, members: Tensor) -> Tensor:
        known = self._known()
        return Quadratics(known.curvature[members], known.linear[members]).gradients(
            self._vectors(members)
        )

    def losses(self) -> Tensor:
        """L_j of every id under the row of every cluster."""
        rows = self._table.weight[: self._table.num_clusters]
        return self._known().losses(rows.detach().to(self._known().linear))

    def own_losses(self) -> Tensor:
        """L_j of every id under the row of its own cluster."""
        own = self._table.assignment[:-1].long()
        return self.losses().gather(1, own[:, None]).squeeze(1)

    def gains(self) -> Tensor:
        """How far each id's loss would fall if it had a row of its own."""
        known = self._known()
        everyone = torch.arange(len(known.linear))
        return known.gains(known.gradients(self._vectors(everyone)))

    def _known(self) -> Quadratics:
        assert self.members is not None  # noqa: S101  (the solver has made a step)
        return self.members

    def _vectors(self, members: Tensor) -> Tensor:
        rows = self._table.weight.detach()[self._table.assignment[members].long()]
        return rows.to(self._known().linear)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return torch.bmm(matrices, vectors[:, :, None])[:, :, 0]
