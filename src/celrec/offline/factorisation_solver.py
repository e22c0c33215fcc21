"""Solvers of factorisations: first factors, residuals, evidence, and what all of them share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.evidence import DistributedEvidence, Evidence
from celrec.data.histories import Grouped
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.offline.kernels import (
    candidate_losses,
    member_gradients,
    partner_means,
    unexplained_sums,
)
from celrec.offline.pair_statistics import make_pair_statistics
from celrec.offline.solver import Solver
from celrec.recommender.model import Model
from celrec.recommender.vectors import Materialised
from celrec.runtime.communicator import LOCAL, WHOLE, Communicator, Partition

CANDIDATES = 128  # that are judged in one pass over the interactions


class DotProductEvidence(Evidence):
    """Losses and gradients of all items, or of all users, in one fused pass each.

    With P = A·Bᵀ over the rows in use, the loss of item j under cluster k is
    Σ (x − P[user, k])² over its interactions, and its gradient at its own row is
    2·Σ (x − a·b)·a.
    """

    def __init__(
        self,
        model: Model,
        log: Interactions,
        side: str,
        residuals: Residuals | None = None,
    ) -> None:
        """With biases, x is the residual; `residuals` has it, made for the same log."""
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
        for first in range(0, len(rows), CANDIDATES):
            some = slice(first, first + CANDIDATES)
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


class FactorisationSolver(Solver):
    """Steps that lower the squared error of a factorisation on a log.

    Private rows of a mixed table are anchored at the shared rows that they come from. Each rank
    has the interactions of a contiguous range of users, and all tables.
    """

    def __init__(
        self,
        model: Model,
        log: Interactions,
        bias_l2: float,
        *,
        per_row_start: bool = False,
        communicator: Communicator = LOCAL,
    ) -> None:
        self.model, self._log, self._per_row_start = model, log, per_row_start
        self.communicator = communicator
        self.residuals = Residuals(model, log, bias_l2, communicator)
        self._user_partition = self._partition_users()
        self._statistics = make_pair_statistics(
            log, model.user_rows, model.item_rows, self._user_partition.mine, communicator
        )
        self._seen_version = 0
        self._anchors = {
            side: table.weight.detach().clone()
            for side, table in model.row_tables.items()
            if isinstance(table, MixedEmbedding)
        }

    def start(self, seed: int) -> None:
        """The first rows, and biases of 0 but for the mean."""
        generator = torch.Generator().manual_seed(seed)
        initialise_factors(self.model, generator, per_row=self._per_row_start)
        self.residuals.start()

    def _partition_users(self) -> Partition:
        """The rows of this rank's users; all rows if users do not have rows of their own."""
        users = self.model.user_rows
        if not isinstance(users, FullEmbedding):
            return WHOLE
        counts = self.communicator.all_reduce(torch.from_numpy(self._log.user_counts))
        # The row of unseen users is the last rank's, like all rows after those of the users.
        weights = np.pad(counts.numpy(), (0, users.num_rows - len(counts)))
        return Partition.balanced(weights, self.communicator)

    def evidence(self, side: str) -> Evidence:
        """Exact, in fused passes."""
        own = DotProductEvidence(self.model, self._log, side, self.residuals)
        return DistributedEvidence(own, self.communicator)

    def loss(self, log: Interactions) -> float:
        """The mean squared error."""
        if not len(log):
            return float("nan")
        return float((self.model.predict(log) - torch.tensor(log.target)).square().mean())

    def state_dict(self) -> dict[str, Any]:
        """The anchors."""
        return {"anchors": self._anchors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._anchors = state["anchors"]
        self.residuals.refresh()
        self._follow_residuals()

    def _fit_biases(self) -> None:
        self.residuals.fit_biases()
        self._follow_residuals()

    def _follow_residuals(self) -> None:
        if self.residuals.version != self._seen_version:
            self._statistics.retarget(self.residuals.target)
            self._seen_version = self.residuals.version


_SMALL = 0.1  # the deviation of factors where biases explain most of a rating


@torch.no_grad()
def initialise_factors(model: Model, generator: torch.Generator, *, per_row: bool = False) -> None:
    """Draw the rows: the paper's non-negative start, or small normal ones with biases.

    Without biases, a full table of |N(0, 1)| is divided by its largest value, or with `per_row`
    each row by its own; a shared row is the mean over its ids. With biases, rows are from
    N(0, 0.1²) and biases are 0. Composed tables keep their parameters, or their absolute values.
    """
    biases = model.biases
    for table in model.row_tables.values():
        if isinstance(table, Materialised):
            if not biases:
                for parameter in table.source.non_negative_parameters():
                    parameter.abs_()
            table.refresh()
        elif biases:
            table.weight.normal_(0, _SMALL, generator=generator)
        else:
            _start_non_negative(table, generator, per_row)
    for bias in biases or ():
        bias.zero_()


def _start_non_negative(table: SharedRows, generator: torch.Generator, per_row: bool) -> None:
    full = torch.randn(table.num_embeddings, table.embedding_dim, generator=generator).abs()
    full /= full.amax(1, keepdim=True) if per_row else full.max()
    rows = table.row_of(torch.arange(table.num_embeddings))
    sums = torch.zeros_like(table.weight).index_add_(0, rows, full)
    sizes = torch.bincount(rows, minlength=len(sums)).clamp_(min=1)
    table.weight.copy_(sums / sizes[:, None])
    if not isinstance(table, ClusteredEmbedding):  # rows that no id has, for unseen ids
        unused = torch.bincount(rows, minlength=len(sums)) == 0
        table.weight[unused] = full.mean(0)


class Residuals:
    """The targets of a factorisation's dot products: x, or x − μ − b_user − b_item with biases.

    Biases are fitted given the factors, first of items, then of users, by the shrunk mean of the
    residuals: b_j = Σ (x − μ − b_u − a·b) / (n_j + λ). Sums are over all ranks.
    """

    def __init__(
        self,
        model: Model,
        log: Interactions,
        l2: float = 5.0,
        communicator: Communicator = LOCAL,
    ) -> None:
        """`log` must not hold unseen ids."""
        self._model, self._log, self._l2 = model, log, l2
        self._communicator = communicator
        self.target: NDArray[np.float32] = log.target
        self.version = 0
        """Counts how often `target` has changed."""
        if model.biases:
            self._user, self._item = (ids.astype(np.int64) for ids in (log.user, log.item))
            self._groups = {side: Grouped(log, side) for side in ("users", "items")}
            self.refresh()

    @torch.no_grad()
    def start(self) -> None:
        """μ becomes the mean of the targets."""
        if biases := self._model.biases:
            total = self._communicator.all_reduce(float(self._log.target.sum(dtype=np.float64)))
            if size := self._communicator.all_reduce(float(len(self._log))):
                biases.mean.fill_(total / size)
            self.refresh()

    @torch.no_grad()
    def fit_biases(self) -> None:
        """Fit the biases anew; nothing to do without."""
        if biases := self._model.biases:
            self._fit_side("items", biases.items)
            self.refresh()
            self._fit_side("users", biases.users)
            self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take up biases that were changed."""
        if biases := self._model.biases:
            known = biases.mean.numpy() + biases.users.numpy()[self._user]
            self.target = self._log.target - known - biases.items.numpy()[self._item]
            self.version += 1

    def _fit_side(self, side: str, bias: Tensor) -> None:
        """The residual mean of each id, its own bias added back, shrunk."""
        tables = self._model.user_rows, self._model.item_rows
        own, other = tables if side == "users" else tables[::-1]
        group = self._groups[side]
        sums = np.zeros(len(group.counts), np.float64)
        unexplained_sums(
            group.starts,
            other.row_of(group.partners).numpy(),
            self.target[group.order],
            own.row_of(torch.arange(own.num_embeddings)).numpy(),
            other.weight.numpy(),
            own.weight.numpy(),
            sums,
        )
        sums += group.counts * bias[:-1].numpy()
        total = self._communicator.all_reduce(torch.from_numpy(sums))
        counts = self._communicator.all_reduce(torch.from_numpy(group.counts))
        # With λ = 0, an id without interactions would have 0 / 0.
        bias[:-1] = total / (counts + self._l2).clamp(min=1e-12)
