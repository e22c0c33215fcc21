"""Where the scores of a cluster's members are cut in two."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def at_zero(scores: Tensor, interactions: Tensor) -> Tensor:
    """δ = 0: those with a score of 0 or more leave."""
    del interactions
    return scores >= 0


def at_median(scores: Tensor, interactions: Tensor) -> Tensor:
    """δ = the median: the upper half leaves, ties cut in the order of the members."""
    del interactions
    upper = scores.argsort(stable=True)[len(scores) // 2 :]
    return torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, upper, True)


def balanced(scores: Tensor, interactions: Tensor) -> Tensor:
    """δ such that both sides have as equal numbers of interactions as a cut allows.

    >>> balanced(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 1, 5]))
    tensor([False, False,  True])
    """
    order = scores.argsort(stable=True)
    below = interactions[order].cumsum(0)[:-1]
    staying = int((2 * below - interactions.sum()).abs().argmin()) + 1
    return torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, order[staying:], True)


THRESHOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "zero": at_zero,
    "median": at_median,
    "balanced": balanced,
}
