"""Descent for tables whose vectors are put together, given the other side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from celrec.config.offline import ComposedConfig
from celrec.recommender.vectors import Materialised


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
