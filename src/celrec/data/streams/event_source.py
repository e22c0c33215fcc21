"""What an online trainer reads from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from celrec.data.streams._lateness import Lateness
from celrec.data.streams.events import Events, Offset
from celrec.errors import CelrecError


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
