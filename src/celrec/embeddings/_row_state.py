"""Moving rows together with what an optimiser remembers about them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@torch.no_grad()
def copy_rows(
    weight: nn.Parameter, source: Tensor, target: Tensor, optimizer: Optimizer | None = None
) -> None:
    """Give the rows `target` the values of the rows `source`, and the optimiser's state of them.

    State with as many rows as the weight (moments, sums of squares) is kept by row;
    anything else, such as a step count, belongs to the whole.

    >>> weight = nn.Parameter(torch.arange(3.0).view(3, 1))
    >>> copy_rows(weight, torch.tensor([2]), torch.tensor([0]))
    >>> weight.flatten().tolist()
    [2.0, 1.0, 2.0]
    """
    weight[target] = weight[source]
    for state in _state(optimizer, weight):
        if state.shape[:1] == weight.shape[:1]:
            state[target] = state[source]


@torch.no_grad()
def forget(parameter: nn.Parameter, optimizer: Optimizer | None) -> None:
    """Set the optimiser's state of a parameter to 0, step count included."""
    for state in _state(optimizer, parameter):
        state.zero_()  # not removed: some optimisers make their state once and for all


def _state(optimizer: Optimizer | None, parameter: nn.Parameter) -> list[Tensor]:
    known = {} if optimizer is None else optimizer.state.get(parameter, {})
    return [state for state in known.values() if isinstance(state, Tensor)]
