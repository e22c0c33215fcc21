"""Alternating least squares, also for tables whose ids do not have one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from celrec.config.offline import ComposedConfig, LeastSquaresConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import SharedRows
from celrec.offline.factorisation_solver import FactorisationSolver
from celrec.offline.row_solvers import solve_rows
from celrec.recommender.model import Model
from celrec.recommender.vectors import Materialised
from celrec.runtime.communicator import LOCAL, WHOLE, Communicator, Partition

_BATCH = 1 << 22  # numbers in the matrices of one batch of rows
_LEAST_NOISE = 1e-6  # of the variance of the targets, so that a perfect fit can be solved for
_LEAST_SPREAD = 1e-6  # of the mean square of a row's values
_OTHER = {"users": "items", "items": "users"}
PASSES = 3  # of coordinate descent; the next sweep goes on from there


class AlternatingLeastSquares(FactorisationSolver):
    """One step: biases, then all users' rows, then all items' rows, from the collapsed sums."""

    def __init__(
        self,
        model: Model,
        log: Interactions,
        how: LeastSquaresConfig,
        communicator: Communicator = LOCAL,
    ) -> None:
        super().__init__(model, log, how.l2_biases, communicator=communicator)
        self.how = how
        self._size = max(self.communicator.all_reduce(float(len(log))), 1.0)
        # Equal targets have no spread, and any scale will do for them.
        self._noise = self._scale = self._variance(log) or 1.0
        eye = torch.eye(model.user_rows.embedding_dim, dtype=torch.float64)
        self._precisions = {
            "users": how.l2_users / self._noise * eye,
            "items": how.l2_items * eye,
        }
        self._means = {side: torch.zeros(len(eye)) for side in ("users", "items")}
        self._moments: dict[str, Tensor] = {}
        self._descents = {
            side: VectorDescent(
                table, how.composed, strength=how.strength, non_negative=how.non_negative
            )
            for side, table in model.row_tables.items()
            if isinstance(table, Materialised)
        }

    def _variance(self, log: Interactions) -> float:
        """Of the targets of all processes."""
        mean = self.communicator.all_reduce(float(log.target.sum(dtype=np.float64))) / self._size
        apart = np.square(log.target.astype(np.float64) - mean).sum()
        return self.communicator.all_reduce(float(apart)) / self._size

    @torch.no_grad()
    def meet(self) -> None:
        """Gather users' rows from the ranks that have their interactions."""
        weight = self.model.user_rows.weight
        partition = self._user_partition
        weight.copy_(partition.all_gather(weight.detach()[partition.mine]))

    @torch.no_grad()
    def step(self) -> float:
        """Sweep once over biases, users and items."""
        for descent in self._descents.values():
            descent.table.refresh()
        self._fit_biases()
        loss = self._statistics.loss()
        for side in ("users", "items"):
            expected_loss = self._descend(side) if side in self._descents else self._solve(side)
        for side in ("users", "items"):
            self._learn_prior(side)
        if self.how.uncertainty:
            self._noise = max(expected_loss / self._size, _LEAST_NOISE * self._scale)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Anchors, σ², the priors and the moments of the items' rows."""
        # Users are solved for first, so their moments are made anew.
        moments = {s: m for s, m in self._moments.items() if s == "items"}
        return {
            **super().state_dict(),
            "noise": self._noise,
            "means": dict(self._means),
            "precisions": dict(self._precisions),
            "moments": moments,
            "descents": {side: descent.state_dict() for side, descent in self._descents.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._noise, self._means = float(state["noise"]), dict(state["means"])
        self._precisions = dict(state["precisions"])
        self._moments = dict(state["moments"])
        for side, descent in self._descents.items():
            descent.load_state_dict(state["descents"][side])

    @torch.no_grad()
    def deviations(self) -> dict[str, Tensor]:
        """How uncertain each row of each side is: a matrix L with L·Lᵀ = Cov(row)."""
        tables = self.model.row_tables
        known = self._moments_of("items", tables["items"])
        if len(known) != tables["items"].num_rows:  # clusters were merged since
            known = _squares(tables["items"])
        users = self._deviations("users", known)
        users = self._user_partition.all_gather(users[self._user_partition.mine])
        return {
            "users": users,
            "items": self._deviations("items", _squares(tables["users"]) + users @ users.mT),
        }

    def _deviations(self, side: str, known: Tensor) -> Tensor:
        """Of one side, given the moments of the other."""
        table = self.model.row_tables[side]
        noise = self.how.strength * self._noise
        ridge = noise * self._precisions[side]
        dim = table.embedding_dim
        found = table.weight.new_empty(table.num_rows, dim, dim)
        for rows in self._batches(side):
            data, _ = self._statistics.normal_equations(side, known, rows)
            # With P = (D + Λ) / noise = G·Gᵀ, the covariance is P⁻¹ = G⁻ᵀ·G⁻¹.
            root = torch.linalg.cholesky((data.double() + ridge) / noise)
            eye = torch.eye(dim, dtype=root.dtype).expand_as(root)
            found[rows] = torch.linalg.solve_triangular(root, eye, upper=False).mT.float()
        return found

    def _partition(self, side: str) -> Partition:
        """The rows that no other rank solves for; of items and shared rows, all ranks solve all."""
        return self._user_partition if side == "users" else WHOLE

    def _here(self, side: str) -> slice:
        return slice(*self._partition(side).mine.indices(self.model.row_tables[side].num_rows)[:2])

    def _batches(self, side: str) -> list[slice]:
        size = max(1, _BATCH // self.model.row_tables[side].embedding_dim ** 2)
        rows = self._here(side)
        starts = range(rows.start, rows.stop, size)
        return [slice(start, min(start + size, rows.stop)) for start in starts]

    def _solve(self, side: str) -> float:
        """New rows for one side; the squared error that is expected after."""
        tables = self.model.row_tables
        table, other = tables[side], tables[_OTHER[side]]
        known = self._moments_of(_OTHER[side], other)
        noise = self.how.strength * self._noise
        ridge = noise * self._precisions[side]
        dim, explained = table.embedding_dim, 0.0
        moments = table.weight.new_empty(table.num_rows, dim, dim)
        for rows in self._batches(side):
            data, right = self._statistics.normal_equations(side, known, rows)
            anchors = self._anchor(side, rows).double().expand(right.shape)
            explained += solve_rows(
                data.numpy(),
                right.numpy(),
                ridge.numpy(),
                anchors.contiguous().numpy(),
                noise if self.how.uncertainty else 0.0,
                PASSES if self.how.non_negative else 0,
                table.weight[rows].numpy(),
                moments[rows].numpy(),
            )
        self._moments[side] = moments
        explained = self._partition(side).all_reduce(explained)
        return self._statistics.squares + explained

    def _descend(self, side: str) -> float:
        """As `_solve`, for a table whose ids do not have one row each."""
        descent = self._descents[side]
        known = self._moments_of(_OTHER[side], self.model.row_tables[_OTHER[side]])
        return self._statistics.squares + descent.sweep(
            self._batches(side),
            lambda rows: self._statistics.normal_equations(side, known, rows),
            self.how.strength * self._noise,
        )

    def _moments_of(self, side: str, table: SharedRows) -> Tensor:
        """row·rowᵀ of every row, and its covariance."""
        known = self._moments.get(side)
        if known is None:
            return _squares(table)
        if isinstance(table, ClusteredEmbedding):
            for new in range(len(known), table.num_rows):  # split off since, like their parents
                known = torch.cat([known, known[int(table.parent[new])][None]])
        return known

    def _learn_prior(self, side: str) -> None:
        """Mean and E[(row − anchor)(row − anchor)ᵀ]⁻¹ of a table that is not clustered."""
        table = self.model.row_tables[side]
        if isinstance(table, (ClusteredEmbedding, Materialised)):
            return
        here = self._here(side)
        rows = table.weight[here].double()
        total = self._partition(side).all_reduce
        self._means[side] = (total(rows.sum(0)) / table.num_rows).float()
        if self.how.uncertainty:
            apart = rows - self._anchor(side, here)
            moments = total(self._moments[side][here].sum(0).double())
            spread = total(apart.T @ apart - rows.T @ rows) + moments
            # A dimension that nobody uses must not become infinitely stiff, nor by rounding worse.
            spread.diagonal().add_(_LEAST_SPREAD * float(moments.diagonal().mean()))
            spread /= table.num_rows
            # Its inverse must be symmetric to the last bit, as rows without data rest on it alone.
            self._precisions[side] = torch.cholesky_inverse(torch.linalg.cholesky(spread))

    def _anchor(self, side: str, rows: slice) -> Tensor:
        """Where the rows are drawn to."""
        anchors = self._anchors.get(side)
        return self._means[side] if anchors is None else anchors[rows]


def _squares(table: SharedRows) -> Tensor:
    """row·rowᵀ of every row."""
    rows = table.weight[: table.num_rows]
    return rows[:, :, None] * rows[:, None, :]


class VectorDescent:
    """Adam on the parameters of one table, with the normal equations of its vectors as the loss."""

    def __init__(
        self, table: Materialised, how: ComposedConfig, *, strength: float, non_negative: bool
    ) -> None:
        self.table, self.how = table, how
        self._strength = strength  # of the table's own penalty
        source = table.source
        self._bounded = source.non_negative_parameters() if non_negative else []
        self.optimizer = torch.optim.Adam(source.parameters(), lr=how.learning_rate)
        self._sweeps = 0

    def sweep(
        self,
        batches: Iterable[slice],
        equations: Callable[[slice], tuple[Tensor, Tensor]],
        noise: float,
    ) -> float:
        """Lower Σ vᵀ·D·v − 2·dᵀ·v plus penalties; return the sum without penalties.

        `equations` returns D and d for a range of ids; `noise` is σ².
        """
        source = self.table.source
        for group in self.optimizer.param_groups:
            group["lr"] = self.how.learning_rate * self.how.decay**self._sweeps
        self._sweeps += 1
        source.train()
        total = 0.0
        for rows in batches:
            ids = torch.arange(rows.start, min(rows.stop, source.num_embeddings))
            if not len(ids):
                continue
            matrices, right = (part[: len(ids)] for part in equations(rows))
            share = len(ids) / source.num_embeddings
            for _ in range(self.how.steps):
                self._step(ids, matrices, right, noise, share)
            with torch.no_grad():
                vectors = source(ids)
                total += float((vectors * (_times(matrices, vectors) - 2 * right)).sum())
        source.eval()
        source.adapt(self.optimizer)
        self._bound()
        self.table.refresh()
        return total

    def state_dict(self) -> dict[str, Any]:
        """The number of sweeps and the optimiser's state."""
        return {"sweeps": self._sweeps, "optimizer": self.optimizer.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._sweeps = int(state["sweeps"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})

    def _step(
        self, ids: Tensor, matrices: Tensor, right: Tensor, noise: float, share: float
    ) -> None:
        """`share` is the share of the ids in the batch, which weights the penalties."""
        source = self.table.source
        self.optimizer.zero_grad()
        with torch.enable_grad():
            vectors = source(ids)
            slope = 2 * (_times(matrices, vectors.detach()) - right)
            vectors.backward(slope)
            if (penalty := source.penalty()) is not None:
                (share * self._strength * penalty).backward()  # type: ignore[no-untyped-call]
        l2 = 2 * noise * self.how.l2 * share
        for parameter in source.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=l2)
        self.optimizer.step()
        self._bound()

    @torch.no_grad()
    def _bound(self) -> None:
        for parameter in self._bounded:
            parameter.clamp_(min=0)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return torch.bmm(matrices, vectors.unsqueeze(-1)).squeeze(-1)
