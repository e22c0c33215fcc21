"""eTree and JNKM for non-negative factorisations, by alternating ADMM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from celrec.config.offline import TreeConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.tree import TreeEmbedding
from celrec.errors import CelrecError
from celrec.offline.factorisation_solver import FactorisationSolver
from celrec.offline.row_solvers import admm_rows
from celrec.recommender.model import Model

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
