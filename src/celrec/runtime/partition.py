"""Partitions of work: which ids, rows or samples are whose."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from celrec.runtime.communicator import LOCAL, Communicator

_T = TypeVar("_T", float, Tensor)


class Partition:
    """The ids, rows or samples of this rank: a contiguous range, `mine`, of those of all ranks.

    Ranges follow each other in the order of the ranks.
    """

    def __init__(self, mine: slice, communicator: Communicator) -> None:
        self.mine, self.communicator = mine, communicator

    @classmethod
    def even(cls, count: int, communicator: Communicator = LOCAL) -> Partition:
        """Equally many for each rank, up to one.

        >>> Partition.even(7).mine
        slice(0, 7, None)
        """
        return cls(_range(even_bounds(count, communicator.size), communicator), communicator)

    @classmethod
    def balanced(
        cls, weights: NDArray[np.integer], communicator: Communicator = LOCAL
    ) -> Partition:
        """Equal sums of weights for each rank, as far as contiguous ranges allow.

        >>> Partition.balanced(np.array([5, 1, 1, 1])).mine
        slice(0, 4, None)
        """
        bounds = balanced_bounds(weights, communicator.size)
        return cls(_range(bounds, communicator), communicator)

    @property
    def start(self) -> int:
        """The first place in the range."""
        return self.mine.start or 0

    def all_reduce(self, value: _T) -> _T:
        """The sum over ranks."""
        return self.communicator.all_reduce(value)

    def all_gather(self, values: Tensor) -> Tensor:
        """The rows of all ranks, in their order."""
        return self.communicator.all_gather(values)

    def total_size(self, values: Tensor) -> int:
        """How many rows all ranks have together, given those of this rank."""
        return int(self.communicator.all_reduce(float(len(values))))


WHOLE = Partition(slice(None), LOCAL)
"""No other rank has any."""


def even_bounds(count: int, parts: int) -> NDArray[np.int64]:
    """Where equal parts of a range begin, and its end.

    >>> even_bounds(7, 3)
    array([0, 2, 4, 7])
    """
    return count * np.arange(parts + 1) // parts


def balanced_bounds(weights: NDArray[np.integer], parts: int) -> NDArray[np.int64]:
    """Where contiguous parts of equal weight begin, and the number of weights.

    >>> balanced_bounds(np.array([5, 1, 1, 1, 4]), 2)
    array([0, 2, 5])
    """
    cumulative = np.concatenate([[0], np.cumsum(weights, dtype=np.int64)])
    goals = cumulative[-1] * np.arange(1, parts) / parts
    inner = np.searchsorted(cumulative, goals)
    return np.concatenate([[0], inner, [len(weights)]]).astype(np.int64)


def _range(bounds: NDArray[np.int64], communicator: Communicator) -> slice:
    return slice(*bounds[communicator.rank :][:2].tolist())
