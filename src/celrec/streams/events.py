"""Batches of events, rejected events, the interface of event sources, and retries of brokers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import polars as pl

from celrec.errors import CelrecError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rejected:
    """An invalid event: its place in the source, its raw text and the reason.

    >>> Rejected("events.csv, line 7", "u1,,5", "no item id").reason
    'no item id'
    """

    place: str
    raw: str
    reason: str


Offset: TypeAlias = dict[str, Any]
"""A position in a source, as JSON values; its contents depend on the source."""


@dataclass(frozen=True, slots=True)
class Events:
    """A batch of consecutive events of a source.

    >>> Events(no_events(), {"row": 0}).frame.columns
    ['user', 'item', 'target']
    """

    frame: pl.DataFrame
    """The columns user and item (original ids: Int64 or String), target (Float32, finite),
    timestamp (Int64) if events have one, and further ids named by `columns.further`, with null
    for missing ones."""
    offset: Offset
    """The position of the source after these events."""
    rejected: tuple[Rejected, ...] = ()
    """Invalid events, which are not in the frame."""


def no_events() -> pl.DataFrame:
    """A frame without events."""
    return pl.DataFrame(schema={"user": pl.String, "item": pl.String, "target": pl.Float32})


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """Consecutive rows of a source: the valid ones as a frame, and the rejected ones.

    >>> bad = Rejected("line 2", "?", "not JSON")
    >>> parsed = ParsedRows(pl.DataFrame({"user": [1, 3, 4]}), (bad,), (1,))
    >>> [(part.frame["user"].to_list(), len(part.rejected)) for part in parsed.batches(2)]
    [([1], 1), ([3, 4], 0)]
    """

    frame: pl.DataFrame
    rejected: tuple[Rejected, ...] = ()
    places: Sequence[int] = ()
    """The row numbers of the rejected, from 0."""

    def __len__(self) -> int:
        """The number of rows, valid or not."""
        return len(self.frame) + len(self.rejected)

    def batches(self, size: int) -> Iterator[ParsedRows]:
        """Split into batches of `size` rows."""
        if len(self) <= size:
            yield self
            return
        for start in range(0, len(self), size):
            end = min(start + size, len(self))
            bad = slice(bisect_left(self.places, start), bisect_left(self.places, end))
            places = [place - start for place in self.places[bad]]
            yield ParsedRows(
                self.frame[start - bad.start : end - bad.stop], self.rejected[bad], places
            )


class Lateness:
    """Counts late rows, whose timestamp is lower than the highest one before them.

    >>> lateness = Lateness()
    >>> lateness.add(pl.DataFrame({"timestamp": [5, 3, 7, 6, 7]}))
    >>> lateness.count, lateness.latest
    (2, 7)
    """

    def __init__(self, count: int = 0, latest: int | None = None) -> None:
        self.count, self.latest = count, latest

    @classmethod
    def after(cls, offset: Offset) -> Lateness:
        """Restore the counts from an offset."""
        return cls(offset.get("late", 0), offset.get("latest"))

    def add(self, frame: pl.DataFrame) -> None:
        """Count the late rows of the next frame."""
        if not len(frame) or "timestamp" not in frame.columns:
            return
        times = frame.get_column("timestamp").to_numpy()
        highest = np.maximum.accumulate(times)
        if self.latest is not None:
            highest = np.maximum(highest, self.latest)
        self.count += int((times < highest).sum())
        self.latest = int(highest[-1])

    def state(self) -> Offset:
        """The counts as part of an offset."""
        return {"late": self.count, "latest": self.latest}


class EventSource(ABC):
    """Events in order, which can be resumed from the offset of any batch.

    The caller reads batches, trains on them, and saves the offset of the last one with the model.
    When both are on disk it calls `acknowledge`. After a crash it resumes with
    `batches(size, after=offset)`, which delivers exactly the events after the saved offset.

    Invalid events never stop a source. They are in `Events.rejected` of their batch, and count as
    its rows.
    """

    kind: str
    """The name of the kind of source in its offsets."""

    def __init__(self) -> None:
        self._lateness = Lateness()

    @property
    def late(self) -> int:
        """The number of late rows, also counted across resumptions."""
        return self._lateness.count

    @abstractmethod
    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """The events after an offset (None: all), in batches of at most `size` rows.

        A live source yields after a short time, perhaps an empty batch, so that the caller can
        check signals and clocks.
        """

    def acknowledge(self, offset: Offset) -> None:  # noqa: B027  (files need no acknowledgement)
        """Tell the broker that all events up to `offset` are saved and can be released."""

    def close(self) -> None:  # noqa: B027  (most sources have none)
        """Close connections."""

    @abstractmethod
    def __str__(self) -> str:
        """The source in messages, without credentials."""

    def _begin(self, size: int, after: Offset | None, **expected: str) -> Offset:
        if size < 1:
            raise CelrecError(f"size must be at least 1 row, got {size}")
        for name, value in {"source": self.kind, **expected}.items():
            if after is not None and after.get(name) != value:
                raise CelrecError(
                    f"{self}: the run has read from another source before, with "
                    f"{name} {after.get(name)!r}; use that one, or start a new run"
                )
        self._lateness = Lateness.after(after or {})
        return after or {}

    def _offset(self, place: Offset) -> Offset:
        return {"source": self.kind, **place, **self._lateness.state()}


_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0


class Outage:
    """Exponential backoff for an unreachable broker, with a limit of `patience` seconds.

    >>> outage = Outage("redis://localhost", patience=60)
    >>> outage.failed("refused"), outage.failed("refused"), outage.failed("refused")
    (0.1, 0.2, 0.4)
    """

    def __init__(self, broker: str, patience: float) -> None:
        self._broker, self._patience = broker, patience
        self._since: float | None = None
        self._wait = _FIRST_WAIT

    def failed(self, reason: str) -> float:
        """Record a failure and return the seconds to wait; an error after `patience` seconds."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._wait = now, _FIRST_WAIT
        if now - self._since >= self._patience:
            raise CelrecError(
                f"{self._broker}: unreachable for {self._patience:g} seconds ({reason}); "
                "start it again or restore the network, then resume the run"
            )
        wait, self._wait = self._wait, min(2 * self._wait, _LONGEST_WAIT)
        return wait

    def retried(self, call: Callable[[], _T]) -> _T:
        """The result of a call, which is repeated until the broker answers."""
        while True:
            try:
                return call()
            except BrokerUnavailable as error:
                time.sleep(self.failed(str(error)))

    def over(self) -> None:
        """Record that the broker answers again."""
        self._since = None


def connected(source: object, connect: Callable[[], _T]) -> _T:
    """The result of a first connection, whose failure is an error of the user."""
    try:
        return connect()
    except BrokerUnavailable as error:
        raise CelrecError(
            f"{source}: cannot connect ({error}); start the server, or fix the address"
        ) from None


class BrokerUnavailable(Exception):  # noqa: N818
    """The broker does not answer at the moment."""
