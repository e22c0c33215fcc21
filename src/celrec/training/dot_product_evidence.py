"""Exact evidence for the ids of a dot-product recommender under squared error."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.clustering.evidence import Evidence
from celrec.data.interactions import Interactions
from celrec.training._kernels import candidate_losses, member_gradients, partner_means
from celrec.training.factorisation import Factorisation
from celrec.training.grouped import Grouped
from celrec.training.residuals import Residuals

_CANDIDATES = 128  # that are judged in one pass over the interactions


class DotProductEvidence(Evidence):
    """Losses and gradients of all items, or of all users, in one fused pass each.

    With P = A·Bᵀ over the rows in use, the loss of item j under cluster k is
    Σ (x − P[user, k])² over its interactions, and its gradient at its own row is
    2·Σ (x − a·b)·a.
    """

    def __init__(
        self,
        model: Factorisation,
        log: Interactions,
        side: str,
        residuals: Residuals | None = None,
    ) -> None:
        """With biases, x is what they leave over; `residuals` tells it, made for the same log."""
        if residuals is None:
            log = log.seen()  # unseen ids tell nothing about others
            residuals = Residuals(model, log)
        self._residuals, self._version = residuals, -1
        tables = model.user_rows, model.item_rows
        self._other, self._own = tables if side == "items" else tables[::-1]
        self._group = Grouped(log, side)

    def interactions(self) -> Tensor:
        """From the log."""
        return torch.from_numpy(self._group.counts)

    def gradients(self, members: Tensor) -> Tensor:
        """One pass over the interactions of these members."""
        gradients = np.zeros((len(members), self._own.embedding_dim), np.float64)
        member_gradients(
            members.numpy(),
            self._group.starts,
            self._partner_rows(),
            self._targets(),
            self._own_rows(),
            self._other.weight.detach().numpy(),
            self._own.weight.detach().numpy(),
            gradients,
        )
        return torch.from_numpy(gradients)

    def losses(self) -> Tensor:
        """One pass over all interactions, all clusters at once."""
        return torch.from_numpy(self._losses_under(self._own.weight[: self._own.num_rows]))

    def own_losses(self) -> Tensor:
        """The column of each id's own cluster."""
        return self.losses().gather(1, torch.from_numpy(self._own_rows())[:, None]).squeeze(1)

    def partners(self, members: Tensor) -> Tensor:
        """The mean row of those that each member interacted with, 0 for none."""
        means = np.zeros((len(members), self._own.embedding_dim), np.float64)
        weight = self._other.weight.detach().numpy()
        partner_means(members.numpy(), self._group.starts, self._partner_rows(), weight, means)
        return torch.from_numpy(means)

    def _losses_under(self, rows: Tensor) -> NDArray[np.float32]:
        others = self._other.weight[: self._other.num_rows]
        losses = np.empty((self._own.num_embeddings, len(rows)), np.float32)
        partners, targets = self._partner_rows(), self._targets()
        # A few candidates at a time, whose predictions fit in a cache.
        for first in range(0, len(rows), _CANDIDATES):
            some = slice(first, first + _CANDIDATES)
            predicted = (others @ rows[some].T).detach().numpy()
            candidate_losses(self._group.starts, partners, targets, predicted, losses[:, some])
        return losses

    def _targets(self) -> NDArray[np.float32]:
        if self._version != self._residuals.version:
            self._sorted_targets = self._residuals.target[self._group.order]
            self._version = self._residuals.version
        return self._sorted_targets

    def _own_rows(self) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = self._own.row_of(torch.arange(self._own.num_embeddings)).numpy()
        return rows

    def _partner_rows(self) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = self._other.row_of(self._group.partners).numpy()
        return rows
