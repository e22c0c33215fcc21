"""Solvers of factorisations by gradient descent and, for trees, by ADMM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from celrec.config.offline import OPTIMISERS, DescentConfig, TreeConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.tree import TreeEmbedding
from celrec.errors import CelrecError
from celrec.offline.factorisation_solver import FactorisationSolver
from celrec.offline.row_solvers import admm_rows
from celrec.recommender.model import Model
from celrec.runtime.communicator import LOCAL, Communicator

_BIASES_EVERY = 10


class GradientDescent(FactorisationSolver):
    """One step: gradients from pair statistics, penalties, averaging, optimiser, projection.

    Biases are fitted anew every ten steps, in a pass over the interactions.
    """

    optimizer: Optimizer

    def __init__(
        self,
        model: Model,
        log: Interactions,
        how: DescentConfig,
        communicator: Communicator = LOCAL,
    ) -> None:
        super().__init__(
            model, log, how.l2_biases, per_row_start=how.per_row_start, communicator=communicator
        )
        self.how = how
        self._steps = 0
        weights = [table.weight for table in self.model.row_tables.values()]
        make = OPTIMISERS[how.optimiser]
        self.optimizer = make(weights, lr=how.learning_rate)  # type: ignore[call-arg]

    @torch.no_grad()
    def step(self) -> float:
        """Take one step; the loss before it, without penalties."""
        if self._steps % _BIASES_EVERY == 0:
            self._fit_biases()
        self._steps += 1
        loss, *slopes = self._statistics.loss_and_slopes()
        bounds = self._statistics.curvature_bounds() if self.how.bounded else (None, None)
        for (side, table), slope, bound in zip(
            self.model.row_tables.items(), slopes, bounds, strict=True
        ):
            gradient = torch.zeros_like(table.weight)
            gradient[: table.num_rows] = self._with_penalties(side, table, slope, bound)
            table.weight.grad = gradient
        self.optimizer.step()
        for table in self.model.row_tables.values():
            if self.how.projection == "clip":
                table.weight.clamp_(min=0)
            elif self.how.projection == "abs":
                table.weight.abs_()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Anchors, the number of steps, and the optimiser's state."""
        optimizer = self.optimizer.state_dict()["state"]
        return {**super().state_dict(), "steps": self._steps, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._steps = int(state["steps"])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})

    def _with_penalties(
        self, side: str, table: SharedRows, slope: Tensor, bound: Tensor | None
    ) -> Tensor:
        how, rows = self.how, table.weight[: table.num_rows]
        penalty, stiffness = how.l2 * rows, how.l2
        if isinstance(table, ClusteredEmbedding):
            if how.shrink_to_mean:
                penalty = penalty + 2 * how.shrink_to_mean * (rows - rows.mean(0))
                stiffness += 2 * how.shrink_to_mean
            if how.shrink_to_parent:
                penalty = penalty + 2 * how.shrink_to_parent * _pull_along_tree(table, rows)
                stiffness += 2 * how.shrink_to_parent * table.num_rows
        if (anchor := self._anchors.get(side)) is not None:
            penalty = penalty + how.pull_to_anchor * (rows - anchor)
            stiffness += how.pull_to_anchor
        sharing = _sharing(table)[:, None].to(slope.dtype) if how.average else slope.new_ones(1)
        inside = sharing if how.penalty_inside else slope.new_ones(1)
        step = slope / sharing + penalty / inside
        if bound is None:
            return step
        curvature = bound[:, None] / sharing + stiffness / inside
        return step * (0.5 / (how.learning_rate * curvature)).clamp_(max=1)


def _sharing(table: SharedRows) -> Tensor:
    """How many ids share each row, 1 for a row that none has."""
    rows = table.row_of(torch.arange(table.num_embeddings))
    return torch.bincount(rows, minlength=table.num_rows).clamp_(min=1)


def _pull_along_tree(table: ClusteredEmbedding, rows: Tensor) -> Tensor:
    """Half the slope of Σ‖row − parent's row‖²: towards the parent and towards the children."""
    parent = table.parent[: table.num_rows].long()
    child = torch.nonzero(parent >= 0).squeeze(1)
    gap = rows[child] - rows[parent[child]]
    pull = torch.zeros_like(rows)
    pull.index_add_(0, child, gap)
    return pull.index_add_(0, parent[child], -gap)


_BATCH = 1 << 22  # numbers in the matrices of one batch of rows


class TreeAdmm(FactorisationSolver):
    """One step solves for all users' rows, all items' leaves, then the tree."""

    def __init__(self, model: Model, log: Interactions, how: TreeConfig, seed: int) -> None:
        super().__init__(model, log, bias_l2=0.0)
        if not isinstance(model.items, TreeEmbedding) or model.biases:
            raise CelrecError(
                "solver TreeAdmm is for a TreeEmbedding of items without biases, "
                f"not {type(model.items).__name__}"
            )
        self.how, self.tree, self._seed = how, model.items, seed
        self._duals = {side: torch.zeros_like(t.weight) for side, t in model.row_tables.items()}
        self._steps = 0
        self._l2, self._pull = how.strength * how.l2_users, how.strength * model.items.pull

    @torch.no_grad()
    def step(self) -> float:
        """Sweep once over users, leaves and tree."""
        loss = self._statistics.loss_and_slopes()[0]
        users, leaves = self.model.user_rows, self.tree
        zero = torch.zeros(1, users.embedding_dim)
        self._lower("users", users, leaves, self._l2, zero)
        if self._steps < self.how.warm_up:
            self._lower("items", leaves, users, self._l2, zero)
        else:
            if self._steps == self.how.warm_up:
                leaves.grow_tree(torch.Generator().manual_seed(self._seed))
            centres = leaves.centre[leaves.assignment.long()]
            anchors = torch.cat([centres, centres.mean(0, keepdim=True)])
            self._lower("items", leaves, users, self._pull, anchors)
            leaves.adapt()
        self._steps += 1
        return loss

    def objective(self) -> float:
        """The objective that steps lower, once there is a tree."""
        with torch.no_grad():
            loss = self._statistics.loss_and_slopes()[0]
            users = self.model.user_rows.weight
            tree = self.how.strength * self.tree.penalty()
            return loss / 2 + float(self._l2 / 2 * users.square().sum() + tree)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """With the rows of the tree that will be served; poor ones before the warm-up ends."""
        with self.tree.as_served():
            yield

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "duals": dict(self._duals), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._duals, self._steps = dict(state["duals"]), int(state["steps"])

    def _lower(
        self, side: str, table: SharedRows, other: SharedRows, ridge: float, anchors: Tensor
    ) -> None:
        known = other.weight[:, :, None] * other.weight[:, None, :]
        size = max(1, _BATCH // table.embedding_dim**2)
        anchors = anchors.double().expand(table.num_rows, -1)
        for start in range(0, table.num_rows, size):
            rows = slice(start, min(start + size, table.num_rows))
            data, right = self._statistics.normal_equations(side, known, rows)
            admm_rows(
                data.numpy(),
                right.numpy(),
                ridge,
                anchors[rows].contiguous().numpy(),
                self.how.iterations,
                self.how.tolerance,
                table.weight[rows].numpy(),
                self._duals[side][rows].numpy(),
            )
