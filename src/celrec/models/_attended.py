"""Attention of targets to histories of their own, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor

from celrec.models._attention_kernels import attend, gradients

_FEW_THREADS = 2  # the loops have one, tensor operations all of them


class Layers(NamedTuple):
    """What is learned of an attention with two hidden layers, as `attended` needs it."""

    scale: Tensor
    """W, (width, dim)."""
    shift: Tensor
    """V, (width, dim)."""
    first_slope: Tensor
    second: Tensor
    """(upper, width)."""
    second_bias: Tensor
    second_slope: Tensor
    last: Tensor
    """(upper,)"""
    last_bias: Tensor


def attended(
    row: Tensor, filled: Tensor, target: Tensor, alone: Tensor, rows: Tensor, layers: Layers
) -> tuple[Tensor, Tensor] | None:
    """Interests Σ_k α_k·k and weights α of targets q, for histories of rows k; None if it cannot.

    α is the softmax over the filled places of MLP((W∘q + V)·k + `alone`) / √dim. There are a
    target (samples, dim), what it alone gives to the first layer (samples, width) and a history
    `row` (samples, length) for each sample. It can in plain numbers in main memory, where nothing
    but values and gradients are asked for.

    >>> row, filled = torch.tensor([[0, 2], [1, 1]]), torch.tensor([[True, True], [False, True]])
    >>> learned = [(5, 8), (5, 8), (1,), (3, 5), (3,), (1,), (3,), (1,)]
    >>> layers = Layers(*map(torch.ones, learned))
    >>> found = attended(row, filled, torch.ones(2, 8), torch.ones(2, 5), torch.ones(3, 8), layers)
    >>> [tuple(one.shape) for one in found or ()]
    [(2, 8), (2, 2)]
    """
    if torch.compiler.is_compiling():  # before lengths are asked for, which exports leave open
        return None
    if not _fit(row, filled, target, alone, rows, layers):
        return None
    found: tuple[Tensor, Tensor] = _Attended.apply(row, filled, target, alone, rows, *layers)  # type: ignore[no-untyped-call]
    return found


def _fit(
    row: Tensor, filled: Tensor, target: Tensor, alone: Tensor, rows: Tensor, layers: Layers
) -> bool:
    """Whether the loops may be used: they would read beyond the end of what is too short."""
    numbers = (target, alone, rows, *layers)
    if rows.ndim != 2 or layers.scale.ndim != 2 or row.ndim != 2 or not row.numel():
        return False
    samples, (width, dim), upper = len(row), layers.scale.shape, layers.last.numel()
    learned = ((width, dim), (width, dim), (1,), (upper, width), (upper,), (1,), (upper,), (1,))
    shapes = ((samples, dim), (samples, width), (len(rows), dim), *learned)
    return (
        rows.dtype in (torch.float32, torch.float64)
        and all(one.dtype == rows.dtype for one in numbers)
        and all(one.device.type == "cpu" for one in (row, filled, *numbers))
        and all(tuple(one.shape) == shape for one, shape in zip(numbers, shapes, strict=True))
        and (row.dtype, filled.dtype) == (torch.int64, torch.bool)
        and filled.shape == row.shape
        and torch.get_num_threads() <= _FEW_THREADS
        and not torch._C._are_functorch_transforms_active()
        and int(row.min()) >= 0
        and int(row.max()) < len(rows)
    )


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        interest, weights, *sums = map(torch.from_numpy, attend(*map(_array, inputs)))
        ctx.save_for_backward(*inputs, weights, *sums)
        return interest, weights

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # somebody wants gradients of these gradients
            return None, None, *_gradients_by_tensors(ctx.saved_tensors[:-3], slopes)
        found = gradients(*map(_array, (*ctx.saved_tensors, *slopes)))
        return None, None, *map(torch.from_numpy, found)


def _gradients_by_tensors(inputs: tuple[Tensor, ...], slopes: tuple[Tensor, ...]) -> list[Tensor]:
    row, filled, *numbers = inputs
    # Views, so that what one of them was made of is no concern of the others.
    own = [one.view_as(one) if one.requires_grad else one.detach() for one in numbers]
    wanted = [one for one in own if one.requires_grad]
    target, alone, rows, *layers = own
    found = by_tensors(row, filled, target, alone, rows, Layers(*layers))
    slope = iter(torch.autograd.grad(found, wanted, slopes, create_graph=True))
    return [next(slope) if one.requires_grad else torch.zeros_like(one) for one in own]


def by_tensors(
    row: Tensor, filled: Tensor, target: Tensor, alone: Tensor, rows: Tensor, layers: Layers
) -> tuple[Tensor, Tensor]:
    """The same as `attended`, by tensor operations."""
    keys = rows[row]
    first = keys @ (target.unsqueeze(-2) * layers.scale + layers.shift).mT + alone.unsqueeze(-2)
    units = F.prelu(first, layers.first_slope)
    upper = F.prelu(F.linear(units, layers.second, layers.second_bias), layers.second_slope)
    scores = (upper @ layers.last + layers.last_bias) / rows.shape[-1] ** 0.5
    weights = masked_softmax(scores, filled)
    return (weights.unsqueeze(-1) * keys).sum(-2), weights


def masked_softmax(scores: Tensor, filled: Tensor) -> Tensor:
    """Over the filled places; where there is none, all weights are 0."""
    scores = scores.masked_fill(~filled, -torch.inf)
    # A history without any item has no weights, instead of undefined ones.
    empty = ~filled.any(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1) * filled


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()
