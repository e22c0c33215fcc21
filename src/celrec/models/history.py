"""What a user did before."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from celrec.errors import CelrecError


class History(NamedTuple):
    """The vectors of earlier items, oldest first, and which places are filled.

    Where they come from a table, `rows` and `row` may tell so, with the vectors or in their
    place: then what depends on a row alone need not be computed for every place.

    >>> import torch
    >>> filled = torch.ones(2, 20, dtype=torch.bool)
    >>> History(torch.zeros(2, 20, 8), filled).vectors.shape
    torch.Size([2, 20, 8])
    >>> row = torch.zeros(2, 20, dtype=torch.int64)
    >>> History(None, filled, torch.zeros(5, 8), row).vectors.shape
    torch.Size([2, 20, 8])
    """

    given: Tensor | None
    """(..., length, dim); what stands in empty places does not matter, if it is finite."""
    filled: Tensor
    """(..., length), bool; empty places come first."""
    rows: Tensor | None = None
    """(rows, dim)."""
    row: Tensor | None = None
    """(..., length): the vectors are rows[row]."""
    target: Tensor | None = None
    """(...): the targets are rows[target], where they are known to come from the same table."""

    @property
    def vectors(self) -> Tensor:
        """(..., length, dim), gathered anew in every call if they are not given."""
        if self.given is not None:
            return self.given
        if self.rows is None or self.row is None:
            raise CelrecError("history has neither vectors nor rows; give it one of them")
        flat = self.rows.index_select(0, self.row.reshape(-1))
        return flat.view(*self.row.shape, self.rows.shape[-1])

    def gathered(self) -> History:
        """With vectors that are given."""
        return self._replace(given=self.vectors)
