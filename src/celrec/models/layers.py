"""Layers that several models share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TypeAlias

import torch
from torch import Tensor, nn

from celrec.errors import CelrecError
from celrec.models.attention import broadcast_einsum
from celrec.models.interaction import History, Interaction

Input: TypeAlias = Tensor | tuple[Tensor, Tensor]


class JoinedLinear(nn.Module):
    """W·[x₁ | x₂ | …] + c, computed as W₁x₁ + W₂x₂ + … + c.

    Only the sums are broadcast, so an input that many candidates share is multiplied once. An
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
        """The sum; `inputs` has one tensor or pair of tensors per size."""
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
    # (W∘x)·x′, which avoids the product x∘x′ for every candidate.
    return broadcast_einsum(first.unsqueeze(-2) * weight, second, "hd,d->h")


class Tower(nn.Module):
    """An MLP with several inputs, PReLU hidden layers and one output.

    There is no batch normalisation and no dropout: the loss of a sample must not depend on the
    other samples of its batch, so that members of a cluster can be evaluated separately.

    >>> Tower([3, 5], [16, 8])([torch.ones(7, 1, 3), torch.ones(7, 50, 5)]).shape
    torch.Size([7, 50])
    """

    def __init__(self, sizes: Sequence[int], hidden: Sequence[int]) -> None:
        super().__init__()
        self.first = JoinedLinear(sizes, hidden[0])
        layers: list[nn.Module] = [nn.PReLU()]
        for width, following in zip(hidden, (*hidden[1:], 1), strict=True):
            layers += [nn.Linear(width, following), nn.PReLU()]
        self.rest = nn.Sequential(*layers[:-1])

    @property
    def bias(self) -> Tensor:
        """The bias of the output."""
        top = self.rest[-1]
        return top.bias  # type: ignore[return-value]

    def forward(self, inputs: Sequence[Input]) -> Tensor:
        """The output without its last axis; `inputs` as for `JoinedLinear`."""
        top: Tensor = self.rest(self.first(inputs))
        return top.squeeze(-1)

    @torch.no_grad()
    def begin_as_sum(self, number: int) -> None:
        """Initialise the output as the sum of input `number`, wherever that is positive.

        The first unit of each layer carries the sum. The other units stay random, with output
        weights of 0.
        """
        weight = self.first.linear.weight
        ends = [sum(self.first.sizes[:n]) for n in (number, number + 1)]
        weight[0] = 0
        weight[0, ends[0] : ends[1]] = 1
        self.first.linear.bias[0] = 0
        linear = [layer for layer in self.rest if isinstance(layer, nn.Linear)]
        for layer in linear:
            layer.weight[0] = 0
            layer.weight[0, 0] = 1
            layer.bias[0] = 0

    @torch.no_grad()
    def begin_at_zero(self) -> None:
        """Initialise the output layer with 0."""
        for parameter in self.rest[-1].parameters():
            parameter.zero_()


class TowerInteraction(Interaction):
    """An interaction model with a `tower` on top, whose output has the only bias."""

    tower: Tower

    @torch.no_grad()
    def set_mean(self, mean: float) -> None:
        self.tower.bias.fill_(mean)


class HistoryInteraction(TowerInteraction):
    """One that reads a history, and whose tower has user∘target as its input 3."""

    uses_history = True
    dim: int

    def begin_as_dot_product(self) -> int:
        self.tower.begin_as_sum(3)
        return self.dim

    def needed(self, history: History | None) -> History:
        """The history; an error if there is none."""
        if history is None:
            name = type(self).__name__
            raise CelrecError(f"history is missing: {name} needs the users' earlier items; pass it")
        return history


def flat(features: Tensor | None, like: Tensor) -> Tensor:
    """The concatenated vectors of all fields; without features a tensor of width 0."""
    if features is None:
        return torch.zeros((*[1] * (like.ndim - 1), 0), dtype=like.dtype, device=like.device)
    return features.flatten(-2)
