"""What one of several processes tells of the members of clusters."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.clustering.ranks import Ranks

_T = TypeVar("_T", float, Tensor)


class Share:
    """Which members, or samples, of some that several processes have are this one's.

    Those of a process are next to each other. Where it is alone, all of them are its own.

    >>> share = Share.even(Ranks(1, 3), 7)
    >>> share.mine, share.count
    (slice(2, 4, None), 7)
    >>> Share.whole(7).mine
    slice(0, 7, None)
    """

    def __init__(self, ranks: Ranks, cuts: NDArray[np.int64]) -> None:
        """`cuts` tells where each process's members begin, and their number: see `Ranks.cuts`."""
        self.ranks, self.count = ranks, int(cuts[-1])
        self.mine = slice(int(cuts[ranks.rank]), int(cuts[ranks.rank + 1]))

    @classmethod
    def whole(cls, count: int) -> Share:
        """Nobody else has any."""
        return cls.even(Ranks.alone(), count)

    @classmethod
    def even(cls, ranks: Ranks, count: int) -> Share:
        """As many for each as can be."""
        return cls(ranks, count * np.arange(ranks.size + 1) // ranks.size)

    def total(self, value: _T) -> _T:
        """The sum of what all processes have."""
        return self.ranks.total(value)

    def joined(self, values: Tensor) -> Tensor:
        """What all processes have of their members, in the order of the members."""
        return values if self.ranks.size == 1 else torch.cat(self.ranks.gathered(values))
