"""Tables whose ids keep their rows, learned online."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.storage.room import Room
from celrec.training.id_noise import id_noise
from celrec.training.online_side import OnlineSide
from celrec.training.row_descent import Descending, RowDescent


class PlainSide(OnlineSide):
    """A table such as a full one, or one with rows shared by chance.

    Rows that come with new ids begin as those of unseen ids, and `spread` apart from them: rows
    that are all alike would go on being so.
    """

    def __init__(
        self,
        name: str,
        table: SharedRows,
        how: Descending,
        *,
        spread: float = 0.0,
        seed: int = 0,
        room: Room | None = None,
    ) -> None:
        super().__init__(name, table)
        self._rows, self._descent = table, RowDescent(table.weight, how, room)
        self._how, self._spread, self._seed = how, spread, seed
        self._looked_up = torch.empty(0, dtype=torch.int64)

    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        self._looked_up = self._rows.row_of(ids)
        return self._rows.weight.detach().index_select(0, self._looked_up)

    def learn(self, gradients: Tensor) -> None:
        """See `OnlineSide`."""
        self._descent.step(self._looked_up, gradients)

    def grow(self, ids: int) -> None:
        """See `OnlineSide`."""
        before = self.table.num_embeddings
        self.table.grow(ids)
        self._scatter(before)

    def keep(self, ids: NDArray[np.int64]) -> None:
        """See `OnlineSide`."""
        kept = torch.from_numpy(ids)
        rows = self._rows.rows_left(kept)
        self.table.keep(kept)
        self._descent.keep(rows.numpy())
        self._scatter(len(ids))

    def _scatter(self, first: int) -> None:
        if not isinstance(self.table, FullEmbedding):
            return
        rows = self.table.weight.detach()[first:-1]
        for part, noise in id_noise(first, first + len(rows), rows.shape[1], self._seed):
            rows[part] += self._spread * torch.from_numpy(noise)
        if self._how.non_negative:
            rows.abs_()

    @property
    def nbytes(self) -> int:
        """What the descent holds."""
        return self._descent.nbytes

    def state_dict(self) -> dict[str, Any]:
        """See `OnlineSide`."""
        return {"descent": self._descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `OnlineSide`."""
        self._descent.load_state_dict(state["descent"])
