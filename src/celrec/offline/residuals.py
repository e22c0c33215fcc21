"""What biases leave for the factors to explain."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.histories import Grouped
from celrec.data.interactions import Interactions
from celrec.offline.kernels import unexplained_sums
from celrec.recommender.model import Model
from celrec.runtime.communicator import LOCAL, Communicator


class Residuals:
    """The targets of a factorisation's dot products: x, or x − μ − b_user − b_item with biases.

    Biases are fitted given the factors, first all items, then all users, each the
    mean of what else leaves over, shrunk towards 0: b_j = Σ (x − μ − b_u − a·b) / (n_j + λ).
    Where ranks have the interactions of some users each, sums are those of all ranks.
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
