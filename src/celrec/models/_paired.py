"""Products of targets with histories, without a copy of a history for every candidate."""

from __future__ import annotations

from itertools import zip_longest
from string import ascii_uppercase

import torch
from torch import Tensor


def paired(left: Tensor, right: Tensor, ends: str) -> Tensor:
    """`torch.einsum` over the last axes, as `ends` says, with leading axes broadcast.

    Where `right` is the same along a leading axis of `left`, the product is one
    larger matrix product instead of many small ones on copies.

    >>> weights, history = torch.rand(7, 50, 20), torch.rand(7, 1, 20, 8)
    >>> paired(weights, history, "l,ld->d").shape
    torch.Size([7, 50, 8])
    """
    inputs, end = ends.split("->")
    first, second = inputs.split(",")
    lead = left.shape[: left.ndim - len(first)]
    lead_right = right.shape[: right.ndim - len(second)]
    axes = max(len(lead), len(lead_right))
    letters = ascii_uppercase[:axes]  # the ends have lower case
    names = []
    for tensor_lead in (lead, lead_right):
        own = letters[axes - len(tensor_lead) :]
        names.append("".join(n for n, size in zip(own, tensor_lead, strict=True) if size != 1))
    present = "".join(n for n in letters if n in names[0] + names[1])
    a = left.reshape(*(size for size in lead if size != 1), *left.shape[len(lead) :])
    b = right.reshape(*(size for size in lead_right if size != 1), *right.shape[len(lead_right) :])
    product = torch.einsum(f"{names[0]}{first},{names[1]}{second}->{present}{end}", a, b)
    # torch.broadcast_shapes takes 100 µs, and numpy's takes sizes for constants in exports.
    sizes = zip_longest(reversed(lead), reversed(lead_right), fillvalue=1)
    whole = reversed([b if a == 1 else a for a, b in sizes])
    return product.view(*whole, *product.shape[len(present) :])


def dot(left: Tensor, right: Tensor) -> Tensor:
    """Σ_d left_d·right_d, with leading axes broadcast, and no copies where they differ.

    >>> dot(torch.ones(50, 1, 8), torch.ones(7, 8)).shape
    torch.Size([50, 7])
    """
    if left.shape == right.shape:
        return (left * right).sum(-1)
    # The common cases: candidates that are the same for all samples.
    if left.ndim == 3 and left.shape[1] == 1 and right.ndim == 2:
        return left.squeeze(1) @ right.T
    if right.ndim == 3 and right.shape[1] == 1 and left.ndim == 2:
        return right.squeeze(1) @ left.T
    return paired(left, right, "d,d->")
