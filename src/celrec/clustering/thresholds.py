"""Where the scores of a cluster's members are cut in two."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from celrec.clustering._nth_smallest import nth_smallest
from celrec.clustering.share import Share


def at_zero(scores: Tensor, interactions: Tensor, share: Share | None = None) -> Tensor:
    """δ = 0: those with a score of 0 or more leave."""
    del interactions, share
    return scores >= 0


def at_median(scores: Tensor, interactions: Tensor, share: Share | None = None) -> Tensor:
    """δ = the median: the upper half leaves, ties cut in the order of the members.

    Several processes tell each other histograms of their scores.
    """
    del interactions
    if share is None or share.ranks.size == 1:
        upper = scores.argsort(stable=True)[len(scores) // 2 :]
        return torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, upper, True)
    staying = share.count // 2
    median = nth_smallest(scores.double(), staying, share)
    level = scores == median
    tied = share.joined(level.sum().view(1))
    below = int(share.total((scores < median).sum()))
    earlier = int(tied[: share.ranks.rank].sum())  # that are level, of the members before
    return (scores > median) | (level & (level.cumsum(0) > staying - below - earlier))


def balanced(scores: Tensor, interactions: Tensor, share: Share | None = None) -> Tensor:
    """δ such that both sides have as equal numbers of interactions as a cut allows.

    Several processes tell each other all scores.

    >>> balanced(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 1, 5]))
    tensor([False, False,  True])
    """
    share = share or Share.whole(len(scores))
    scores, interactions = share.joined(scores), share.joined(interactions)
    order = scores.argsort(stable=True)
    below = interactions[order].cumsum(0)[:-1]
    staying = int((2 * below - interactions.sum()).abs().argmin()) + 1
    leaving = torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, order[staying:], True)
    return leaving[share.mine]


Threshold: TypeAlias = Callable[[Tensor, Tensor, Share | None], Tensor]
"""From scores and interactions of a process's members to a mask of those that leave."""

THRESHOLDS: dict[str, Threshold] = {
    "zero": at_zero,
    "median": at_median,
    "balanced": balanced,
}
