"""Gradients to which several processes add."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from celrec.clustering.ranks import Ranks


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Let each parameter have the sum of the gradients that all processes have, by one message.

    No gradient counts as 0. A parameter for which nobody has one stays without, so that an
    optimiser leaves it alone.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> weight.sum().backward()
    >>> sum_gradients([weight], Ranks.alone())
    >>> weight.grad
    tensor([1., 1.])
    """
    if ranks.size == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    given = [parameter.grad is not None for parameter in trained]
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    counts, *sums = ranks.totals([torch.tensor(given).to(slopes[0]), *slopes])
    for parameter, count, total in zip(trained, counts.tolist(), sums, strict=True):
        parameter.grad = total if count else None
