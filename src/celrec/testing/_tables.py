"""What the checks need to say about tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding

Factory: TypeAlias = Callable[..., Embedding]
"""Makes a fresh table; takes `padding_idx` and `dtype`, one of them or neither."""

FLOATS = (torch.float32, torch.float64, torch.float16)
_FAR = (2**40, -(2**40), 2**63 - 1, -(2**63))
_IDS = 100
"""Known ids that are tried at most."""
_STEPS = 12
"""Steps of training before a table counts as trained, each with an `adapt`."""


def known(table: Embedding) -> Tensor:
    """All ids, or the first ones and the last."""
    count = table.num_embeddings
    if count <= _IDS:
        return torch.arange(count)
    return torch.cat([torch.arange(_IDS - 1), torch.tensor([count - 1])])


def everyone(table: Embedding) -> Tensor:
    """Known ids, and some that no table knows."""
    count = table.num_embeddings
    return torch.cat([known(table), torch.tensor([-1, -count, count, count + 1, *_FAR])])


def trainable(table: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that take gradients, by name."""
    return {name: value for name, value in table.named_parameters() if value.requires_grad}


def trained(table: Embedding, *, with_optimizer: bool = True) -> Embedding:
    """The table itself after a little training, in a state that is worth being kept."""
    parameters = trainable(table)
    optimizer = _adam(parameters) if parameters else None
    ids = torch.cat([known(table), torch.tensor([-1])])
    target = torch.rand(len(ids), table.embedding_dim)
    for _ in range(_STEPS):
        if optimizer is not None:
            optimizer.zero_grad()
            (table(ids) - target).square().mean().backward()
            optimizer.step()
        table.adapt(optimizer if with_optimizer else None)
    return table


def _adam(parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    # With the usual ε, squares of small gradients would be 0 / 0 in half precision.
    return torch.optim.Adam(parameters.values(), lr=0.05, eps=1e-3)


def slope_of(parameter: nn.Parameter) -> Tensor:
    """Its gradient, zeros where it has none."""
    slope = parameter.grad
    if slope is None:
        return torch.zeros_like(parameter)
    return slope.to_dense() if slope.is_sparse else slope


def pulled(
    table: Embedding, ids: Tensor, pull: Tensor, look_up: Callable[..., Tensor] | None = None
) -> dict[str, Tensor]:
    """The gradients of all parameters if the vectors of `ids` are pulled at."""
    table.zero_grad()
    vectors: Tensor = table(ids) if look_up is None else look_up(ids)
    require(vectors.requires_grad, "vectors take no gradient")
    torch.autograd.backward(vectors, pull)
    found = {name: slope_of(value).clone() for name, value in trainable(table).items()}
    table.zero_grad()
    return found


def saved(table: nn.Module) -> dict[str, Tensor]:
    """The state as it comes out of a file: nothing is shared with the table."""
    return {name: value.detach().clone() for name, value in table.state_dict().items()}


def same(found: Tensor, expected: Tensor, what: str) -> None:
    """Fail unless two tensors are equal but for rounding."""
    shapes = tuple(found.shape), tuple(expected.shape)
    require(shapes[0] == shapes[1], f"{what}: shape {shapes[0]}, not {shapes[1]}")
    apart = (found.detach() - expected.detach()).abs().double()
    far = apart[~(apart <= 1e-5 + 1e-5 * expected.detach().abs())]  # NaN is far too
    require(not len(far), f"{what}: {max(far.tolist(), default=0):.3g} apart")


def finite(values: Tensor, what: str) -> None:
    """Fail unless all numbers are finite."""
    require(bool(values.isfinite().all()), f"{what} is not finite")


def require(held: bool, otherwise: str) -> None:
    """Fail with this message unless something holds."""
    if not held:
        raise AssertionError(otherwise)
