"""Helpers of the checks: test ids, training, gradients and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding

Factory: TypeAlias = Callable[..., Embedding]
"""Returns a new table; takes `padding_idx` and `dtype` as optional keyword arguments."""

FLOATS = (torch.float32, torch.float64, torch.float16)
_FAR = (2**40, -(2**40), 2**63 - 1, -(2**63))
_IDS = 100
"""The maximal number of known test ids."""
_STEPS = 12
"""Training steps of `trained`, each with an `adapt`."""


def known_ids(table: Embedding) -> Tensor:
    """All ids, or for large tables the first ones and the last."""
    count = table.num_embeddings
    if count <= _IDS:
        return torch.arange(count)
    return torch.cat([torch.arange(_IDS - 1), torch.tensor([count - 1])])


def probe_ids(table: Embedding) -> Tensor:
    """Known ids and some unseen ones."""
    count = table.num_embeddings
    return torch.cat([known_ids(table), torch.tensor([-1, -count, count, count + 1, *_FAR])])


def trainable(table: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters with gradients, by name."""
    return {name: value for name, value in table.named_parameters() if value.requires_grad}


def trained(table: Embedding, *, with_optimizer: bool = True) -> Embedding:
    """Train a table for a few steps towards random targets, and return it."""
    parameters = trainable(table)
    optimizer = _adam(parameters) if parameters else None
    ids = torch.cat([known_ids(table), torch.tensor([-1])])
    target = torch.rand(len(ids), table.embedding_dim)
    for _ in range(_STEPS):
        if optimizer is not None:
            optimizer.zero_grad()
            (table(ids) - target).square().mean().backward()
            optimizer.step()
        table.adapt(optimizer if with_optimizer else None)
    return table


def _adam(parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    # With the default ε, squares of small gradients would give 0 / 0 in half precision.
    return torch.optim.Adam(parameters.values(), lr=0.05, eps=1e-3)


def gradients_of(
    table: Embedding, ids: Tensor, weights: Tensor, look_up: Callable[..., Tensor] | None = None
) -> dict[str, Tensor]:
    """The gradients of Σ weights·v(ids) with respect to all parameters."""
    table.zero_grad()
    vectors: Tensor = table(ids) if look_up is None else look_up(ids)
    require(vectors.requires_grad, "vectors take no gradient")
    torch.autograd.backward(vectors, weights)
    found = {name: _gradient(value).clone() for name, value in trainable(table).items()}
    table.zero_grad()
    return found


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient


def saved(table: nn.Module) -> dict[str, Tensor]:
    """A copy of the state that shares no memory with the table."""
    return {name: value.detach().clone() for name, value in table.state_dict().items()}


def same(found: Tensor, expected: Tensor, what: str) -> None:
    """Fail unless two tensors are equal up to rounding."""
    shapes = tuple(found.shape), tuple(expected.shape)
    require(shapes[0] == shapes[1], f"{what}: shape {shapes[0]}, not {shapes[1]}")
    apart = (found.detach() - expected.detach()).abs().double()
    far = apart[~(apart <= 1e-5 + 1e-5 * expected.detach().abs())]  # NaN is far too
    require(not len(far), f"{what}: {max(far.tolist(), default=0):.3g} apart")


def finite(values: Tensor, what: str) -> None:
    """Fail unless all values are finite."""
    require(bool(values.isfinite().all()), f"{what} is not finite")


def require(condition: bool, message: str) -> None:
    """Raise an AssertionError with the message unless the condition is true."""
    if not condition:
        raise AssertionError(message)
