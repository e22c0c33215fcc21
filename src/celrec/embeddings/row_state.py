"""Copying, averaging and resetting the optimiser state of a parameter's rows.

State with as many rows as the parameter (moments, sums of squares) belongs to the rows;
anything else, such as a step count, belongs to the whole parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


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


def _by_row(state: dict[str, Any], weight: Tensor) -> dict[str, Tensor]:
    """The part of a parameter's state that has as many rows as the parameter."""
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape[:1] == weight.shape[:1]
    }


def _state(optimizer: Optimizer | None, parameter: Tensor) -> dict[str, Any]:
    return {} if optimizer is None else optimizer.state.get(parameter, {})
