"""Alternating least squares for dot-product recommenders, and their variational form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.errors import CelrecError
from celrec.training._kernels import descend_non_negative
from celrec.training.factorisation import Factorisation
from celrec.training.solver import Solver

_CHUNK = 1 << 22  # numbers in the matrices of one batch of rows
_LEAST_NOISE = 1e-6  # of the variance of the targets, so that a perfect fit can be solved for
_LEAST_SPREAD = 1e-8  # of the mean variance of a row's values
_ROUNDING = 1e-5  # of a mean diagonal: what sums of float32 may be off by
_PASSES = 3  # of coordinate descent; the next sweep goes on from there


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """How rows are solved for.

    Given the other side, the rows of one side are ridge solutions

        b = (Σ n·a·aᵀ + Λ)⁻¹ (Σ s·a + Λ·anchor)

    over pairs of rows with n interactions and a sum of residuals s. The anchor of a
    personalised row is the row that it comes from, that of others the mean row of
    their table as it was, and that of clusters 0. Λ is `l2_users`·I for users and
    σ²·`l2_items`·I for items, σ² being the variance of the targets: so users carry
    the unit of the ratings, and ratings on any scale are treated alike.

    With `uncertainty` this is variational Bayes: a·aᵀ becomes a·aᵀ + Cov(a), since
    a row with little data is known badly and must not be relied upon; σ² becomes
    the expected error after each sweep, and Λ = σ²·E[(b − anchor)(b − anchor)ᵀ]⁻¹
    for tables that are not clustered. Covariances take `dim`² numbers for each row.

    `non_negative` keeps all values at or above 0, by coordinate descent.
    """

    l2_users: float = 5.0
    l2_items: float = 1.0
    l2_biases: float = 5.0
    uncertainty: bool = True
    non_negative: bool = False

    def __post_init__(self) -> None:
        for name in ("l2_users", "l2_items"):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.l2_biases >= 0:
            raise CelrecError(f"l2_biases must not be negative, not {self.l2_biases}")


class AlternatingLeastSquares(Solver):
    """One step: biases, then all users' rows, then all items' rows, from the collapsed sums."""

    def __init__(self, model: Factorisation, log: Interactions, how: LeastSquares) -> None:
        super().__init__(model, log, how.l2_biases)
        self.how = how
        self._size = max(len(log), 1)
        # Equal targets have no spread, and any scale will do for them.
        self._scale = float(np.var(log.target, dtype=np.float64)) if len(log) else 0.0
        self._noise = self._scale = self._scale or 1.0
        eye = torch.eye(model.user_rows.embedding_dim, dtype=torch.float64)
        self._precisions = {
            "users": how.l2_users / self._noise * eye,
            "items": how.l2_items * eye,
        }
        self._means = {side: torch.zeros(len(eye)) for side in ("users", "items")}
        self._covariances: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self) -> float:
        """Sweep once over biases, users and items."""
        self._fit_biases()
        loss = self._collapsed.loss_and_slopes()[0]
        for side in ("users", "items"):
            expected_loss = self._solve(side)
        for side in ("users", "items"):
            self._learn_prior(side)
        if self.how.uncertainty:
            self._noise = max(expected_loss / self._size, _LEAST_NOISE * self._scale)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Anchors, σ², the priors' precisions and the covariances of the items' rows."""
        # Users are solved for first, so their covariances are made anew.
        covariances = {s: c for s, c in self._covariances.items() if s == "items"}
        return {
            **super().state_dict(),
            "noise": self._noise,
            "means": self._means,
            "precisions": self._precisions,
            "covariances": covariances,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        super().load_state_dict(state)
        self._noise, self._means = float(state["noise"]), dict(state["means"])
        self._precisions = dict(state["precisions"])
        self._covariances = dict(state["covariances"])

    def _solve(self, side: str) -> float:
        """New rows for one side; the squared error that is expected after."""
        tables = self._tables()
        table, other = tables[side], tables["users" if side == "items" else "items"]
        moments = self._moments("users" if side == "items" else "items", other)
        ridge = self._noise * self._precisions[side]
        dim, expected = table.embedding_dim, self._collapsed.squares
        covariances = table.weight.new_empty(table.num_rows, dim, dim)
        batch = max(1, _CHUNK // dim**2)
        for first in range(0, table.num_rows, batch):
            rows = slice(first, min(first + batch, table.num_rows))
            data, data_right = self._collapsed.normal_equations(side, moments, rows)
            matrices, right = data.double() + ridge, data_right.double()
            diagonal = matrices.diagonal(dim1=1, dim2=2)
            diagonal += _ROUNDING * diagonal.mean(1, keepdim=True)
            right += self._anchor(side, rows).double() @ ridge
            factors = torch.linalg.cholesky(matrices)
            if self.how.non_negative:
                new = table.weight[rows].clone()
                descend_non_negative(
                    matrices.float().numpy(), right.float().numpy(), new.numpy(), _PASSES
                )
            else:
                new = torch.cholesky_solve(right.unsqueeze(2), factors).squeeze(2).float()
            table.weight[rows] = new
            if self.how.uncertainty:
                covariances[rows] = self._noise * torch.cholesky_inverse(factors)
                new_moments = _outer(new) + covariances[rows]
                expected += float((data * new_moments).sum() - 2 * (data_right * new).sum())
        if self.how.uncertainty:
            self._covariances[side] = covariances
        return expected

    def _moments(self, side: str, table: SharedRows) -> Tensor:
        """row·rowᵀ of every row, and its covariance."""
        moments = _outer(table.weight[: table.num_rows])
        if (known := self._covariances.get(side)) is None:
            return moments
        if isinstance(table, ClusteredEmbedding):
            for new in range(len(known), table.num_rows):  # split off since, like their parents
                known = torch.cat([known, known[int(table.parent[new])][None]])
        return moments.add_(known)

    def _learn_prior(self, side: str) -> None:
        """Mean and E[(row − anchor)(row − anchor)ᵀ]⁻¹ of a table that is not clustered."""
        table = self._tables()[side]
        if isinstance(table, ClusteredEmbedding):
            return
        rows = table.weight[: table.num_rows]
        self._means[side] = rows.mean(0)
        if self.how.uncertainty:
            apart = rows - self._anchor(side, slice(table.num_rows))
            spread = apart.T @ apart + self._covariances[side].sum(0)
            spread = spread.double() / table.num_rows
            # A dimension that nobody uses must not become infinitely stiff.
            spread.diagonal().add_(_LEAST_SPREAD * float(spread.diagonal().mean()))
            self._precisions[side] = torch.linalg.inv(spread)

    def _anchor(self, side: str, rows: slice) -> Tensor:
        """Where the rows are drawn to."""
        anchors = self._anchors.get(side)
        return self._means[side] if anchors is None else anchors[rows]


def _outer(rows: Tensor) -> Tensor:
    return rows[:, :, None] * rows[:, None, :]
