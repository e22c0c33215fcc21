"""The ids of one table, as a stream tells of them."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap

_NEVER = np.iinfo(np.int64).min


class KnownIds:
    """Original ids and their numbers, how many events each has had, and the sum of its targets.

    If `moments` are given, also when each was heard of last.

    >>> shops = KnownIds()
    >>> numbers = shops.numbers(pl.Series(["north", None, "north"]))
    >>> numbers
    array([ 0, -1,  0])
    >>> shops.add(numbers, np.array([4.0, 1.0, 5.0], np.float32))
    >>> shops.counts_of(np.array([0, -1])), shops.sums
    (array([2, 0]), array([9.]))
    """

    def __init__(
        self,
        ids: IdMap | None = None,
        counts: NDArray[np.int64] | None = None,
        sums: NDArray[np.float64] | None = None,
        moments: NDArray[np.int64] | None = None,
    ) -> None:
        self.ids = IdMap() if ids is None else ids
        self._counts = np.zeros(0, np.int64) if counts is None else counts.copy()
        self._sums = np.zeros(0, np.float64) if sums is None else sums.copy()
        self._moments = None if moments is None else moments.copy()

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many events each id has had."""
        return self._counts[: len(self.ids)]

    @property
    def sums(self) -> NDArray[np.float64]:
        """The sum of the targets of each id."""
        return self._sums[: len(self.ids)]

    @property
    def moments(self) -> NDArray[np.int64] | None:
        """The moment of the last event of each id, where moments are kept."""
        return None if self._moments is None else self._moments[: len(self.ids)]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        moments = 0 if self._moments is None else self._moments.nbytes
        return self.ids.nbytes + self._counts.nbytes + self._sums.nbytes + moments

    def numbers(self, values: pl.Series) -> NDArray[np.int64]:
        """The number of each id, UNSEEN for null; those not yet known get the next free ones."""
        if values.null_count():
            numbers = np.full(len(values), UNSEEN, np.int64)
            numbers[values.is_not_null().to_numpy()] = self.ids.extend(values.drop_nulls())
        else:
            numbers = self.ids.extend(values).astype(np.int64)
        more = len(self.ids) - len(self._counts)
        if more > 0:  # by an eighth at least: to grow takes time for all ids
            more = max(more, len(self._counts) // 8)
            self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
            self._sums = np.concatenate([self._sums, np.zeros(more)])
            if self._moments is not None:
                self._moments = np.concatenate([self._moments, np.full(more, _NEVER)])
        return numbers

    def counts_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many events these have had, none where there is no id."""
        known = numbers > UNSEEN
        counts = np.zeros(len(numbers), np.int64)
        counts[known] = self._counts[numbers[known]]
        return counts

    def add(
        self,
        numbers: NDArray[np.int64],
        targets: NDArray[np.float32],
        moments: NDArray[np.int64] | None = None,
    ) -> None:
        """Take notice of events, and of their moments where those are kept."""
        known = numbers > UNSEEN
        np.add.at(self._counts, numbers[known], 1)
        np.add.at(self._sums, numbers[known], targets[known].astype(np.float64))
        if self._moments is not None and moments is not None:
            np.maximum.at(self._moments, numbers[known], moments[known])

    def heard_since(self, moment: int) -> NDArray[np.int64]:
        """Those whose last event was at that moment or later; all where moments are not kept."""
        if self.moments is None:
            return np.arange(len(self.ids))
        return np.flatnonzero(self.moments >= moment)

    def keep(self, numbers: NDArray[np.int64]) -> None:
        """Let only these remain, numbered anew in this order."""
        self._counts, self._sums = self._counts[numbers], self._sums[numbers]
        if self._moments is not None:
            self._moments = self._moments[numbers]
        self.ids.keep(numbers)
