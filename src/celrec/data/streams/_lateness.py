"""Events that come after later ones."""

from __future__ import annotations

import numpy as np
import polars as pl

from celrec.data.streams.events import Offset


class Lateness:
    """Counts rows whose timestamp is lower than the highest one before them.

    >>> lateness = Lateness()
    >>> lateness.add(pl.DataFrame({"timestamp": [5, 3, 7, 6, 7]}))
    >>> lateness.count, lateness.latest
    (2, 7)
    """

    def __init__(self, count: int = 0, latest: int | None = None) -> None:
        self.count, self.latest = count, latest

    @classmethod
    def after(cls, offset: Offset) -> Lateness:
        """What had been counted when `offset` was made."""
        return cls(offset.get("late", 0), offset.get("latest"))

    def add(self, frame: pl.DataFrame) -> None:
        """Take the next rows."""
        if not len(frame) or "timestamp" not in frame.columns:
            return
        times = frame.get_column("timestamp").to_numpy()
        highest = np.maximum.accumulate(times)
        if self.latest is not None:
            highest = np.maximum(highest, self.latest)
        self.count += int((times < highest).sum())
        self.latest = int(highest[-1])

    def state(self) -> Offset:
        """For the offset."""
        return {"late": self.count, "latest": self.latest}
