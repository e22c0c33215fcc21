"""What came of some rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from celrec.data.streams.rejected import Rejected


@dataclass(frozen=True, slots=True)
class Taken:
    """The good ones of some consecutive rows, and the others with what is wrong with them.

    >>> bad = Rejected("line 2", "?", "not JSON")
    >>> taken = Taken(pl.DataFrame({"user": [1, 3, 4]}), (bad,), (1,))
    >>> [(part.frame["user"].to_list(), len(part.rejected)) for part in taken.batches(2)]
    [([1], 1), ([3, 4], 0)]
    """

    frame: pl.DataFrame
    rejected: tuple[Rejected, ...] = ()
    places: Sequence[int] = ()
    """Which of the rows each of the rejected was, from 0."""

    def __len__(self) -> int:
        """How many rows there were."""
        return len(self.frame) + len(self.rejected)

    def batches(self, size: int) -> Iterator[Taken]:
        """The same, `size` rows at a time."""
        if len(self) <= size:
            yield self
            return
        for start in range(0, len(self), size):
            end = min(start + size, len(self))
            bad = slice(bisect_left(self.places, start), bisect_left(self.places, end))
            places = [place - start for place in self.places[bad]]
            yield Taken(self.frame[start - bad.start : end - bad.stop], self.rejected[bad], places)
