"""Batches of events, rejected events, and the sources that both come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that was set aside: where it stood, what was written there, and what is wrong.

    >>> Rejected("events.csv, line 7", "u1,,5", "no item id").reason
    'no item id'
    """

    place: str
    raw: str
    reason: str


Offset: TypeAlias = dict[str, Any]
"""Where to go on in a source; can be written as JSON. What is in it is the source's business."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some consecutive events of a source.

    >>> Events(no_events(), {"row": 0}).frame.columns
    ['user', 'item', 'target']
    """

    frame: pl.DataFrame
    """The columns user, item (original ids: Int64 or String), target (Float32, finite),
    timestamp (Int64) where the events have one, and further ids as `columns.further` says,
    null where there is none."""
    offset: Offset
    """Where the source goes on after these events."""
    rejected: tuple[Rejected, ...] = ()
    """Events that were malformed, and are not in the frame."""


def no_events() -> pl.DataFrame:
    """A frame without rows."""
    return pl.DataFrame(schema={"user": pl.String, "item": pl.String, "target": pl.Float32})


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


class EventSource(ABC):
    """Events in order, which can be read on from any offset that came with them.

    The caller reads batches, learns from them, and saves the offset of the last
    one together with the model. When both are safely on disk it calls
    `acknowledge`. After a crash it goes on with `batches(size, after=offset)`:
    what came after the saved offset is delivered again, what came before is not.

    Malformed events never stop a source. They come as `Events.rejected` in the
    batch where they stood, and count as rows of it.
    """

    kind: str
    """What the offsets of this kind of source are marked with."""

    def __init__(self) -> None:
        self._lateness = Lateness()

    @property
    def late(self) -> int:
        """How many rows had a lower timestamp than one before them, counted across resumptions."""
        return self._lateness.count

    @abstractmethod
    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """The events after an offset, all of them if it is None, at most `size` rows at a time.

        A live source yields what there is after a short time, even if that is
        nothing, so that the caller can look at signals and clocks.
        """

    def acknowledge(self, offset: Offset) -> None:
        """Tell the broker that everything up to `offset` is safe and need not be kept for us."""
        del offset  # files are nobody's to tell

    def close(self) -> None:  # noqa: B027  (most sources hold none)
        """Let go of connections."""

    @abstractmethod
    def __str__(self) -> str:
        """What is read, for people; never with credentials."""

    def _begin(self, size: int, after: Offset | None, **expected: str) -> Offset:
        """Check both arguments, and take up the counts of `after`; an empty offset for None."""
        if size < 1:
            raise CelrecError(f"size must be at least 1 row, got {size}")
        for name, value in {"source": self.kind, **expected}.items():
            if after is not None and after.get(name) != value:
                raise CelrecError(
                    f"{self}: the run has read from another source before, with "
                    f"{name} {after.get(name)!r}; go on with that one, or start a new run"
                )
        self._lateness = Lateness.after(after or {})
        return after or {}

    def _offset(self, place: Offset) -> Offset:
        return {"source": self.kind, **place, **self._lateness.state()}
