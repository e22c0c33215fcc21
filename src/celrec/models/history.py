"""What a user did before."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class History(NamedTuple):
    """The vectors of earlier items, oldest first, and which places are filled.

    Where they come from a table, `rows` and `row` may tell so: then what depends on a
    row alone need not be computed for every place.

    >>> import torch
    >>> History(torch.zeros(2, 20, 8), torch.ones(2, 20, dtype=torch.bool)).vectors.shape
    torch.Size([2, 20, 8])
    """

    vectors: Tensor
    """(..., length, dim); what stands in empty places does not matter, if it is finite."""
    filled: Tensor
    """(..., length), bool; empty places come first."""
    rows: Tensor | None = None
    """(rows, dim)."""
    row: Tensor | None = None
    """(..., length): vectors = rows[row]."""
