"""Products of targets with the items of their histories."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from celrec.models._pair_kernels import gradients, multiply
from celrec.models._paired import paired

_FEW_THREADS = 2  # the loops have one, torch's products all of them


def pair_products(target: Tensor, keys: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(W∘q + V)·k for every target q and each item k of its history; W is `scale`, V `shift`.

    Targets (..., dim) and histories (..., length, dim), with leading axes broadcast, and
    matrices (hidden, dim) give (..., length, hidden).

    >>> W, V = torch.rand(5, 8), torch.rand(5, 8)
    >>> pair_products(torch.rand(7, 50, 8), torch.rand(7, 1, 20, 8), W, V).shape
    torch.Size([7, 50, 20, 5])
    """
    if _in_machine_code(target, keys, scale, shift):
        found: Tensor = _PairProducts.apply(target, keys, scale, shift)  # type: ignore[no-untyped-call]
        return found
    return paired(target.unsqueeze(-2) * scale + shift, keys, "hd,ld->lh")


def _in_machine_code(target: Tensor, *others: Tensor) -> bool:
    """Whether it can be: a history each, plain numbers in main memory, nothing but values asked."""
    if torch.compiler.is_compiling():  # before lengths are asked for, which exports leave open
        return False
    keys, *matrices = others
    return (
        (target.ndim, keys.ndim) == (2, 3)
        and len(target) == len(keys)
        # Loops would read beyond the end of what is too short; tensor operations say so.
        and all(other.shape[-1] == target.shape[-1] for other in others)
        and all(len(matrix) == len(matrices[0]) for matrix in matrices)
        and target.dtype in (torch.float32, torch.float64)
        and all(other.dtype == target.dtype for other in others)
        and all(one.device.type == "cpu" for one in (target, *others))
        and torch.get_num_threads() <= _FEW_THREADS
        and not torch._C._are_functorch_transforms_active()
    )


class _PairProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return torch.from_numpy(multiply(*(_array(one) for one in inputs)))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        target, keys, scale, shift = ctx.saved_tensors
        (slope,) = slopes
        if not torch.is_grad_enabled():
            arrays = (_array(one) for one in (target, keys, scale, shift, slope))
            return tuple(map(torch.from_numpy, gradients(*arrays)))
        # Somebody wants gradients of these gradients.
        of_matrix = slope.mT @ keys
        of_target = (of_matrix * scale).sum(-2)
        of_keys = slope @ (target.unsqueeze(-2) * scale + shift)
        of_scale = (of_matrix * target.unsqueeze(-2)).sum(0)
        return of_target, of_keys, of_scale, of_matrix.sum(0)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()
