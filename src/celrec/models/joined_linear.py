"""A linear layer on several inputs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TypeAlias

import torch
from torch import Tensor, nn

from celrec.models._paired import paired

Input: TypeAlias = Tensor | tuple[Tensor, Tensor]


class JoinedLinear(nn.Module):
    """W·[x₁ | x₂ | …] + c, computed as W₁x₁ + W₂x₂ + … + c.

    Each product has the leading axes of its own input, and only the sums are
    broadcast: an input that is the same for many candidates is multiplied once. An
    input may be a pair of tensors, which stands for their product x∘x′.

    >>> import torch
    >>> layer = JoinedLinear([3, 5], 4)
    >>> layer([torch.ones(7, 1, 3), torch.ones(7, 50, 5)]).shape
    torch.Size([7, 50, 4])
    """

    def __init__(self, sizes: Sequence[int], out: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.linear = nn.Linear(sum(self.sizes), out)

    def forward(self, inputs: Sequence[Input]) -> Tensor:
        """One tensor, or pair of tensors, for each of the sizes."""
        weights = torch.split(self.linear.weight, list(self.sizes), 1)
        parts = [_times(x, weight) for x, weight in zip(inputs, weights, strict=True)]
        total: Tensor = reduce(add, parts) + self.linear.bias
        return total


def _times(x: Input, weight: Tensor) -> Tensor:
    """W·x, or W·(x∘x′)."""
    if isinstance(x, Tensor):
        return x @ weight.T
    first, second = sorted(x, key=Tensor.numel)
    if first.shape[:-1] == second.shape[:-1]:
        return (first * second) @ weight.T
    # (W∘x)·x′: no product is made for every candidate.
    return paired(first.unsqueeze(-2) * weight, second, "hd,d->h")
