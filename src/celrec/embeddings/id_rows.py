"""What a table keeps for each id or row, as tensors that grow and move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from celrec.runtime.growing_arrays import GrowingRows
from celrec.runtime.memory_budget import MemoryBudget


class IdRows:
    """Makes longer and shorter ones of a tensor; in a `budget` those are where it puts them.

    Without one, or on another device than the processor, they are as torch makes them. The
    tensor is the caller's: after it was moved or copied, it is taken into the room anew.

    >>> IdRows(MemoryBudget(budget=0)).grown(torch.tensor([[1, 2], [3, 4]]), 3, -1)
    tensor([[ 1,  2],
            [ 3,  4],
            [-1, -1]])
    """

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._budget = budget
        self._rows: GrowingRows | None = None

    def moved_in(self, tensor: Tensor) -> Tensor:
        """The same where the room puts it."""
        return self._longer(tensor, len(tensor)) if self._roomy(tensor) else tensor

    def grown(self, tensor: Tensor, rows: int, new: Tensor | int) -> Tensor:
        """With so many rows, those behind being as `new`."""
        before = len(tensor)
        if not self._roomy(tensor):
            one = torch.as_tensor(new, dtype=tensor.dtype, device=tensor.device)
            return torch.cat([tensor, one.expand(rows - before, *tensor.shape[1:])])
        found = self._longer(tensor, rows)
        found[before:] = new
        return found

    def kept(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Only these rows, which ascend."""
        if not self._roomy(tensor):
            return tensor[rows]
        self._longer(tensor, len(tensor))
        assert self._rows is not None  # noqa: S101  (the tensor is in it now)
        self._rows.keep(rows.numpy())
        return torch.from_numpy(self._rows.first(len(rows)))

    def emptied(self, tensor: Tensor, rows: int) -> Tensor:
        """So many rows of zeros, of the same kind."""
        if not self._roomy(tensor):
            return tensor.new_zeros(rows, *tensor.shape[1:])
        self._rows = None
        return self._longer(tensor[:0], rows)

    def _roomy(self, tensor: Tensor) -> bool:
        return self._budget is not None and tensor.device.type == "cpu"

    def _longer(self, tensor: Tensor, rows: int) -> Tensor:
        """The tensor in the room, and zeros behind it."""
        values = tensor.detach().numpy()
        if self._rows is None or self._rows.flat.ctypes.data != values.ctypes.data:
            self._rows = GrowingRows(values.dtype, values.shape[1:], rows, self._budget)
            self._rows.first(len(values))[:] = values
        else:
            self._rows.grow(rows)
        return torch.from_numpy(self._rows.first(rows))

    def __deepcopy__(self, memo: dict[int, Any]) -> IdRows:
        """Without a room: a copy of a table is in memory."""
        return IdRows()


def narrowest(count: int) -> torch.dtype:
    """The narrowest integers that can number `count` things from 0.

    >>> narrowest(256), narrowest(257)
    (torch.uint8, torch.int16)
    """
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if count - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64
