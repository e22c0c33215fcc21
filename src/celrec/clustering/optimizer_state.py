"""Keeping an optimiser's memory of rows right when rows change their meaning."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


@torch.no_grad()
def copy_row_state(optimizer: Optimizer, weight: Tensor, source: int, target: int) -> None:
    """Give row `target` of `weight` the optimiser's state of row `source`.

    State with as many rows as the weight (moments, sums of squares) is kept by row;
    anything else, such as a step count, belongs to the whole.
    """
    for state in optimizer.state.get(weight, {}).values():
        if isinstance(state, Tensor) and state.shape[:1] == weight.shape[:1]:
            state[target] = state[source]


@torch.no_grad()
def share_row_state(optimizer: Optimizer, weight: Tensor, assignment: Tensor, rows: int) -> None:
    """Make state by row of `weight` that of a table of `rows` rows, before it gets so many itself.

    A new row has the mean of the state of its members, and zeros if it has none.
    """
    sizes = torch.bincount(assignment, minlength=rows).clamp(min=1)
    for name, state in optimizer.state.get(weight, {}).items():
        if isinstance(state, Tensor) and state.shape[:1] == weight.shape[:1]:
            total = state.new_zeros(rows, *state.shape[1:], dtype=torch.float64)
            total.index_add_(0, assignment, state.double())
            mean = total / sizes.view(-1, *(1,) * (state.dim() - 1))
            optimizer.state[weight][name] = mean.to(state.dtype)
