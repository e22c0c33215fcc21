"""A linear layer on several inputs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn


class JoinedLinear(nn.Module):
    """W·[x₁ | x₂ | …] + c, computed as W₁x₁ + W₂x₂ + … + c.

    Each product has the leading axes of its own input, and only the sums are
    broadcast: an input that is the same for many candidates is multiplied once.

    >>> import torch
    >>> layer = JoinedLinear([3, 5], 4)
    >>> layer([torch.ones(7, 1, 3), torch.ones(7, 50, 5)]).shape
    torch.Size([7, 50, 4])
    """

    def __init__(self, sizes: Sequence[int], out: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.linear = nn.Linear(sum(self.sizes), out)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """One tensor for each of the sizes."""
        weights = torch.split(self.linear.weight, list(self.sizes), 1)
        parts = [x @ weight.T for x, weight in zip(inputs, weights, strict=True)]
        total: Tensor = reduce(add, parts) + self.linear.bias
        return total
