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
