"""Per-id and per-row tensors of a table: growth under a budget, dtypes, optimiser state."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.runtime.memory_budget import GrowingRows, MemoryBudget


class IdRows:
    """Resizes a per-id tensor, with the result in memory or in a file as a `budget` decides.

    Without a budget, or on a device other than the CPU, these are plain torch operations. The
    tensor belongs to the caller; if it is no longer the one allocated here, it is copied.

    >>> IdRows(MemoryBudget(budget=0)).extended(torch.tensor([[1, 2], [3, 4]]), 3, -1)
    tensor([[ 1,  2],
            [ 3,  4],
            [-1, -1]])
    """

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._budget = budget
        self._rows: GrowingRows | None = None

    def place(self, tensor: Tensor) -> Tensor:
        """The same tensor, allocated under the budget."""
        return self._longer(tensor, len(tensor)) if self._managed(tensor) else tensor

    def extended(self, tensor: Tensor, rows: int, new: Tensor | int) -> Tensor:
        """The tensor with `rows` rows; the additional ones are `new`."""
        before = len(tensor)
        if not self._managed(tensor):
            one = torch.as_tensor(new, dtype=tensor.dtype, device=tensor.device)
            return torch.cat([tensor, one.expand(rows - before, *tensor.shape[1:])])
        found = self._longer(tensor, rows)
        found[before:] = new
        return found

    def selected(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Only the given rows, in ascending order."""
        if not self._managed(tensor):
            return tensor[rows]
        self._longer(tensor, len(tensor))
        assert self._rows is not None  # noqa: S101  (set by _longer)
        self._rows.keep(rows.numpy())
        return torch.from_numpy(self._rows.first(len(rows)))

    def zeros(self, tensor: Tensor, rows: int) -> Tensor:
        """A tensor of zeros with `rows` rows and the dtype, width and device of `tensor`."""
        if not self._managed(tensor):
            return tensor.new_zeros(rows, *tensor.shape[1:])
        self._rows = None
        return self._longer(tensor[:0], rows)

    def _managed(self, tensor: Tensor) -> bool:
        return self._budget is not None and tensor.device.type == "cpu"

    def _longer(self, tensor: Tensor, rows: int) -> Tensor:
        """The tensor under the budget, padded with zeros to `rows` rows."""
        values = tensor.detach().numpy()
        if self._rows is None or self._rows.flat.ctypes.data != values.ctypes.data:
            self._rows = GrowingRows(values.dtype, values.shape[1:], rows, self._budget)
            self._rows.first(len(values))[:] = values
        else:
            self._rows.grow(rows)
        return torch.from_numpy(self._rows.first(rows))

    def __deepcopy__(self, memo: dict[int, Any]) -> IdRows:
        """Return one without a budget: copies of a table are in memory."""
        return IdRows()


def narrowest_dtype(count: int) -> torch.dtype:
    """The narrowest integer dtype for 0 … `count` − 1.

    >>> narrowest_dtype(256), narrowest_dtype(257)
    (torch.uint8, torch.int16)
    """
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if count - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64


@torch.no_grad()
def copy_row_state(
    optimizer: Optimizer | None, weight: Tensor, source: int | Tensor, target: int | Tensor
) -> None:
    """Give the rows `target` of `weight` the optimiser's state of the rows `source`."""
    for state in _by_row(_state(optimizer, weight), weight).values():
        state[target] = state[source]


@torch.no_grad()
def copy_rows(
    weight: nn.Parameter,
    source: int | Tensor,
    target: int | Tensor,
    optimizer: Optimizer | None = None,
) -> None:
    """Give the rows `target` the values and the optimiser's state of the rows `source`.

    >>> weight = nn.Parameter(torch.arange(3.0).view(3, 1))
    >>> copy_rows(weight, torch.tensor([2]), torch.tensor([0]))
    >>> weight.flatten().tolist()
    [2.0, 1.0, 2.0]
    """
    weight[target] = weight[source]
    copy_row_state(optimizer, weight, source, target)


@torch.no_grad()
def average_row_state(
    optimizer: Optimizer | None, weight: Tensor, assignment: Tensor, rows: int
) -> None:
    """Replace the state of `weight`'s rows by that of `rows` clusters of them.

    A cluster's state is the mean of its members' state, 0 if it has none. To be called before
    the parameter itself gets so many rows.
    """
    sizes = torch.bincount(assignment, minlength=rows).clamp(min=1)
    known = _state(optimizer, weight)
    for name, state in _by_row(known, weight).items():
        total = state.new_zeros(rows, *state.shape[1:], dtype=torch.float64)
        total.index_add_(0, assignment, state.double())
        mean = total / sizes.view(-1, *(1,) * (state.dim() - 1))
        known[name] = mean.to(state.dtype)


@torch.no_grad()
def reset_entries(optimizer: Optimizer | None, weight: Tensor, entries: tuple[Tensor, ...]) -> None:
    """Set the state of some entries of `weight` to 0, where there is state for each entry.

    `entries` index the parameter: the rows, and perhaps the columns.
    """
    for state in _by_row(_state(optimizer, weight), weight).values():
        if state.shape == weight.shape:
            state[entries] = 0


@torch.no_grad()
def reset_state(optimizer: Optimizer | None, parameter: Tensor) -> None:
    """Set the optimiser's state of a parameter to 0, step count included."""
    for state in _state(optimizer, parameter).values():
        if isinstance(state, Tensor):
            state.zero_()  # not removed: some optimisers create their state only once


@torch.no_grad()
def add_parameter(optimizer: Optimizer | None, like: Tensor, new: nn.Parameter) -> None:
    """Let an optimiser train a new parameter as it trains another one.

    Its state has the same step count, and is 0 else.
    """
    for group in [] if optimizer is None else optimizer.param_groups:
        if any(one is like for one in group["params"]):
            group["params"].append(new)
    known = _state(optimizer, like)
    if optimizer is not None and known:
        optimizer.state[new] = {
            name: torch.zeros_like(new, dtype=value.dtype)
            if isinstance(value, Tensor) and value.shape == like.shape
            else copy.deepcopy(value)
            for name, value in known.items()
        }


def _by_row(state: dict[str, Any], weight: Tensor) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape[:1] == weight.shape[:1]
    }


def _state(optimizer: Optimizer | None, parameter: Tensor) -> dict[str, Any]:
    return {} if optimizer is None else optimizer.state.get(parameter, {})
