"""The users whose events one of several processes learns."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.clustering.ranks import Ranks


class OwnUsers:
    """By their original ids; and the numbers of those that are here among the users of all.

    A user is known here by a number of this process. Among all, users are numbered when they are
    `counted`: those of the first process, then those of the next, behind all that were counted
    before. So a number once given stays.

    >>> own = OwnUsers(Ranks.alone())
    >>> own.places(pl.Series(["ann", "bob"])), own.counted(2), own.counted(3)
    (array([0, 1]), array([0, 1]), array([0, 1, 2]))
    """

    def __init__(self, ranks: Ranks, numbers: NDArray[np.int64] | None = None, total: int = 0):
        """`numbers` are those of the users here, of a `total` that were counted before."""
        self._ranks = ranks
        self._numbers = np.empty(0, np.int64) if numbers is None else numbers
        self.total = total
        """How many users of all were counted."""

    def places(self, users: pl.Series) -> NDArray[np.int64]:
        """Where the users of this process are among some."""
        if self._ranks.size == 1:
            return np.arange(len(users))
        return np.flatnonzero(_owners(users, self._ranks) == self._ranks.rank)

    def counted(self, users: int) -> NDArray[np.int64]:
        """The numbers of the first users of this process, after all have counted theirs."""
        new = self._ranks.gathered(torch.tensor([users - len(self._numbers)]))
        counts = [int(one) for one in new]
        first = self.total + sum(counts[: self._ranks.rank])
        more = first + np.arange(counts[self._ranks.rank])
        self._numbers = np.concatenate([self._numbers, more])
        self.total += sum(counts)
        return self._numbers


def of_all(users: pl.Series, ranks: Ranks) -> NDArray[np.int64]:
    """The numbers of all users in `SharedClusters`, where each process has its own in this order.

    >>> of_all(pl.Series(["ann", "bob"]), Ranks.alone())
    array([0, 1])
    """
    owners = _owners(users, ranks)
    numbers = np.empty(len(users), np.int64)
    for rank in range(ranks.size):
        own = np.flatnonzero(owners == rank)
        numbers[own] = np.arange(len(own)) * ranks.size + rank
    return numbers


def _owners(users: pl.Series, ranks: Ranks) -> NDArray[np.int64]:
    """The rank that each belongs to."""
    # As text, since an id may come as a number now and as text another time.
    owners = users.cast(pl.String).hash() % ranks.size
    return owners.to_numpy().astype(np.int64)
