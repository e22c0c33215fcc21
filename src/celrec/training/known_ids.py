"""The ids of one table, as a stream tells of them."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap


class KnownIds:
    """Original ids and their numbers, how many events each has had, and the sum of its targets.

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
    ) -> None:
        self.ids = IdMap() if ids is None else ids
        self._counts = np.zeros(0, np.int64) if counts is None else counts.copy()
        self._sums = np.zeros(0, np.float64) if sums is None else sums.copy()

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many events each id has had."""
        return self._counts[: len(self.ids)]

    @property
    def sums(self) -> NDArray[np.float64]:
        """The sum of the targets of each id."""
        return self._sums[: len(self.ids)]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.ids.nbytes + self._counts.nbytes + self._sums.nbytes

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
        return numbers

    def counts_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many events these have had, none where there is no id."""
        known = numbers > UNSEEN
        counts = np.zeros(len(numbers), np.int64)
        counts[known] = self._counts[numbers[known]]
        return counts

    def add(self, numbers: NDArray[np.int64], targets: NDArray[np.float32]) -> None:
        """Take notice of events."""
        known = numbers > UNSEEN
        np.add.at(self._counts, numbers[known], 1)
        np.add.at(self._sums, numbers[known], targets[known].astype(np.float64))
