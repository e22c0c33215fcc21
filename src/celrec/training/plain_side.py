"""Tables whose ids keep their rows, learned online."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from celrec.embeddings.shared_rows import SharedRows
from celrec.training.online_side import OnlineSide
from celrec.training.row_descent import Descending, RowDescent


class PlainSide(OnlineSide):
    """A table such as a full one, or one with rows shared by chance."""

    def __init__(self, name: str, table: SharedRows, how: Descending) -> None:
        super().__init__(name, table)
        self._rows, self._descent = table, RowDescent(table.weight, how)
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
        self.table.grow(ids)
        self._descent.follow(self._rows.weight)

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
        self._descent.follow(self._rows.weight)
