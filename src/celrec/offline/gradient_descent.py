"""Full-batch gradient descent for dot-product recommenders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from celrec.config.offline import OPTIMISERS, DescentConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import SharedRows
from celrec.offline.factorisation_solver import FactorisationSolver
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
