"""What one of several processes sees of a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from celrec.clustering.ranks import Ranks
from celrec.clustering.share import Share
from celrec.training.batch import Batch


class PartOfBatch:
    """A process's share of the samples; where there are too few for all, one that counts nothing.

    So all processes draw the same random numbers and have gradients of the same parameters.

    >>> whole = Batch(torch.arange(3), torch.arange(3), torch.zeros(3))
    >>> parts = [PartOfBatch(whole, Ranks(rank, 4)) for rank in range(4)]
    >>> [part.batch.user.tolist() for part in parts], [part.weight.tolist() for part in parts]
    ([[0], [0], [1], [2]], [[0.0], [1.0], [1.0], [1.0]])
    """

    def __init__(self, whole: Batch, ranks: Ranks) -> None:
        self._whole, self._alone = whole, ranks.size == 1
        weight = torch.ones_like(whole.target) if whole.weight is None else whole.weight
        self.whole_weight = float(weight.sum())
        """How many interactions the whole batch stands for."""
        mine = Share.even(ranks, len(whole.user)).mine
        self._nothing = mine.start == mine.stop
        self._places = slice(0, 1) if self._nothing else mine
        self.batch = whole if self._alone else whole.at(self._places)
        self.weight = weight[self._places] * (not self._nothing)
        """How many each of these samples stands for."""

    def share_of(self, terms: Callable[[Batch], int]) -> float:
        """The share of this process in the terms of a mean over the whole batch."""
        if self._alone:
            return 1.0
        return 0.0 if self._nothing else terms(self.batch) / max(terms(self._whole), 1)

    def normal(self, generator: torch.Generator, shape: torch.Size) -> Tensor:
        """Numbers from N(0, 1) for these samples, of those for the whole batch."""
        everywhere = torch.randn((len(self._whole.user), *shape[1:]), generator=generator)
        return everywhere[self._places]
