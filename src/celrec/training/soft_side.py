"""CEL-Lite with posterior means: ids are where the evidence puts them, as far as it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from celrec.data.replay_buffer import ReplayBuffer
from celrec.embeddings.posterior import IMPOSSIBLE, STEPS_PER_BIT, PosteriorEmbedding
from celrec.training._online_kernels import add_evidence, weigh
from celrec.training.batch import Batch
from celrec.training.online_side import Judge, OnlineSide
from celrec.training.row_descent import Descending, RowDescent

_STEPS = STEPS_PER_BIT / math.log(2)  # in a unit of a loss that is a log likelihood
_VALUES = np.exp2(-np.arange(256, dtype=np.float32) / STEPS_PER_BIT)
_VALUES[IMPOSSIBLE] = 0


_SCATTER = 0.5  # the standard deviation of the logarithms of the weights of a new id


class SoftSide(OnlineSide):
    """A table of mixtures: rows learn from all ids, as much as those are theirs.

    Each event is trained on with the weights from before it, and only then becomes
    evidence: w_k ← w_k·exp(−loss_k/τ), with the vector of the partner from before. So no
    label is used to choose the rows that it trains. `temperature` τ turns a loss into a
    log likelihood: 1 for cross-entropy, twice the variance of the noise for squared errors.
    """

    def __init__(
        self,
        name: str,
        table: PosteriorEmbedding,
        how: Descending,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(name, table)
        self._rows, self._how, self._seed = table, how, seed
        self._descent = RowDescent(table.weight, how)
        self._temperature, self._steps = temperature, _STEPS / temperature
        self._weights = np.empty((0, table.max_rows), np.float32)
        self.counts = ReplayBuffer(0, {})
        self._events = 0

    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        rows = self._rows.num_rows
        self._weights = np.empty((len(ids), rows), np.float32)
        weigh(self._rows.evidence.numpy(), ids.numpy(), _VALUES, self._weights)
        return torch.from_numpy(self._weights) @ self._rows.weight.detach()[:rows]

    def without(self, batch: Batch, vectors: Mapping[str, Tensor], judge: Judge) -> Tensor:
        """See `OnlineSide`: w_k·exp(loss_k/τ) are the weights without an event."""
        weights = torch.from_numpy(self._weights)[: len(batch.user)]
        logs = self._losses(batch, vectors, judge).T / self._temperature
        weights *= (logs - logs.amax(1, keepdim=True)).exp()
        weights /= weights.sum(1, keepdim=True)
        return weights @ self._rows.weight.detach()[: self._rows.num_rows]

    def learn(self, gradients: Tensor) -> None:
        """A row's gradient is the sum over the batch, each with the row's weight there."""
        weights = torch.from_numpy(self._weights)
        pulled = weights.T @ gradients
        if self._how.average:
            pulled /= weights.sum(0).clamp(min=1).unsqueeze(1)
        self._descent.descend(np.arange(len(pulled)), pulled.numpy())

    def observe(
        self,
        batch: Batch,
        ids: Tensor,
        vectors: Mapping[str, Tensor],
        judge: Judge,
        *,
        again: bool,
    ) -> None:
        """See `OnlineSide`. In another pass, an event replaces its share of the evidence."""
        losses = self._losses(batch, vectors, judge)
        numbers = ids.numpy()
        if not again:
            self.counts.insert(numbers)
        kept = np.ones(len(numbers), np.float32)
        if again:
            kept -= 1 / (1 + self.counts.counts[numbers])
        evidence = self._rows.evidence.numpy()
        add_evidence(evidence, numbers, losses.numpy(), kept, self._steps, self._events)
        self._events += len(ids)

    def _losses(self, batch: Batch, vectors: Mapping[str, Tensor], judge: Judge) -> Tensor:
        rows = self._rows.weight.detach()[: self._rows.num_rows].unsqueeze(1)
        return judge.losses(self.name, batch, rows, vectors)

    def begin(self) -> None:
        """See `OnlineSide`."""
        self._scatter(0)

    def grow(self, ids: int) -> None:
        """See `OnlineSide`."""
        before = self.table.num_embeddings
        self.table.grow(ids)
        self._scatter(before)

    def _scatter(self, first: int) -> None:
        """Let the ids from `first` on begin a little apart.

        Where all have the same vector, they go on having it: what a row learns from each is
        the same as what the others do.
        """
        new = self._rows.evidence[first:-1]
        generator = torch.Generator().manual_seed((self._seed << 32) ^ first)
        noise = torch.randn(new.shape, generator=generator)
        value = new + _SCATTER * _STEPS * noise
        value -= value.amin(1, keepdim=True)
        value = value.clamp(max=IMPOSSIBLE - 1).round().to(torch.uint8)
        new.copy_(torch.where(new == IMPOSSIBLE, new, value))

    @property
    def nbytes(self) -> int:
        """What the descent holds."""
        return self._descent.nbytes

    def state_dict(self) -> dict[str, Any]:
        """See `OnlineSide`."""
        return {"descent": self._descent.state_dict(), "events": self._events}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `OnlineSide`."""
        self._events = int(state["events"])
        self._descent.load_state_dict(state["descent"])
        self._descent.follow(self._rows.weight)
