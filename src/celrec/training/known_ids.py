"""The ids of one table, as a stream tells of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap
from celrec.storage.growing_rows import GrowingRows
from celrec.storage.room import Room

_NEVER = np.iinfo(np.int64).min
_INT64, _FLOAT64 = np.dtype(np.int64), np.dtype(np.float64)


class KnownIds:
    """Original ids and their numbers, how many events each has had, and the sum of its targets.

    If `moments` are given, also when each was heard of last. What is beyond the budget of a `room`
    lies in files.

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
        room: Room | None = None,
    ) -> None:
        self.ids = IdMap(room=room) if ids is None else ids
        self._counts = _rows(_INT64, counts, room)
        self._sums = _rows(_FLOAT64, sums, room)
        self._moments = None if moments is None else _rows(_INT64, moments, room)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many events each id has had."""
        return self._counts.first(len(self.ids))

    @property
    def sums(self) -> NDArray[np.float64]:
        """The sum of the targets of each id."""
        return self._sums.first(len(self.ids))

    @property
    def moments(self) -> NDArray[np.int64] | None:
        """The moment of the last event of each id, where moments are kept."""
        return None if self._moments is None else self._moments.first(len(self.ids))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.ids.nbytes + sum(rows.nbytes for rows in self._all())

    def numbers(self, values: pl.Series) -> NDArray[np.int64]:
        """The number of each id, UNSEEN for null; those not yet known get the next free ones."""
        if values.null_count():
            numbers = np.full(len(values), UNSEEN, np.int64)
            numbers[values.is_not_null().to_numpy()] = self.ids.extend(values.drop_nulls())
        else:
            numbers = self.ids.extend(values).astype(np.int64)
        room = len(self._counts.flat)
        if len(self.ids) > room:  # by an eighth at least: to grow may take time for all ids
            for rows in self._all():
                rows.grow(max(len(self.ids), room * 9 // 8))
            if self._moments is not None:
                self._moments.flat[room:] = _NEVER
        return numbers

    def _all(self) -> tuple[GrowingRows, ...]:
        both = self._counts, self._sums
        return both if self._moments is None else (*both, self._moments)

    def counts_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many events these have had, none where there is no id."""
        known = numbers > UNSEEN
        counts = np.zeros(len(numbers), np.int64)
        counts[known] = self._counts.flat[numbers[known]]
        return counts

    def add(
        self,
        numbers: NDArray[np.int64],
        targets: NDArray[np.float32],
        moments: NDArray[np.int64] | None = None,
    ) -> None:
        """Take notice of events, and of their moments where those are kept."""
        known = numbers > UNSEEN
        np.add.at(self._counts.flat, numbers[known], 1)
        np.add.at(self._sums.flat, numbers[known], targets[known].astype(np.float64))
        if self._moments is not None and moments is not None:
            np.maximum.at(self._moments.flat, numbers[known], moments[known])

    def heard_since(self, moment: int) -> NDArray[np.int64]:
        """Those whose last event was at that moment or later; all where moments are not kept."""
        if self.moments is None:
            return np.arange(len(self.ids))
        return np.flatnonzero(self.moments >= moment)

    def keep(self, numbers: NDArray[np.int64]) -> None:
        """Let only these remain, which ascend, numbered anew in this order."""
        for rows in self._all():
            rows.keep(numbers)
        self.ids.keep(numbers)


def _rows(dtype: np.dtype[Any], values: NDArray[Any] | None, room: Room | None) -> GrowingRows:
    rows = GrowingRows(dtype, (), 0 if values is None else len(values), room)
    if values is not None:
        rows.flat[:] = values
    return rows
