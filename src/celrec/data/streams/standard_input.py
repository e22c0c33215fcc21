"""Events from another program."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from typing import IO

from celrec.data.columns import Columns
from celrec.data.streams._text_events import Format, TextEvents
from celrec.data.streams.event_source import EventSource
from celrec.data.streams.events import Events, Offset

_CHUNK = 1 << 16


class StandardInput(EventSource):
    """Events that are piped in, as delimited text or JSON lines, until the pipe is closed.

    A pipe cannot be wound back. To resume, pipe in the same events again from
    their beginning: as many rows as the offset tells are passed over. Events that
    differ in their first line are refused.

    The format is told by the first line unless it is given (`written_as`).
    """

    kind = "standard input"

    def __init__(
        self,
        roles: Columns | None = None,
        *,
        written_as: Format | None = None,
        stream: IO[bytes] | None = None,
        linger: float = 1.0,
    ) -> None:
        super().__init__()
        self._roles, self._format, self._linger = roles or Columns(), written_as, linger
        self._stream = stream

    def __str__(self) -> str:
        return "standard input"

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """See `EventSource`; ends with the input."""
        offset = self._begin(size, after)
        events = TextEvents(str(self), self._roles, self._format, offset, size)
        descriptor = (self._stream or sys.stdin).fileno()
        ended = False
        while not ended or events.pending:
            deadline = time.monotonic() + self._linger
            while not ended and events.pending < size:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                    break
                if data := os.read(descriptor, _CHUNK):
                    events.feed(data)
                else:
                    events.finish()
                    ended = True
            taken = events.take()
            self._lateness.add(taken.frame)
            yield Events(taken.frame, self._offset(events.place()), taken.rejected)
