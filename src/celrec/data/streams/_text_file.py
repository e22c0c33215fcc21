"""The events of a text file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import cast

from celrec.data.columns import Columns
from celrec.data.streams._event_file import FileBatch
from celrec.data.streams._text_events import Format, TextEvents
from celrec.data.streams.events import Offset
from celrec.data.text_source import TextSource
from celrec.errors import CelrecError

_CHUNK = 1 << 20
_JSON_NAMES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")


class TextFile:
    """Reads a file of delimited rows or JSON lines, plain or compressed, some rows at a time."""

    def __init__(self, source: TextSource, roles: Columns) -> None:
        self._source, self._roles = source, roles

    def batches(self, size: int, after: Offset) -> Iterator[FileBatch]:
        """See `EventFile`."""
        length = self._source.path.stat().st_size
        if length < after.get("size", 0):
            raise CelrecError(
                f"{self._source}: {length:,} bytes where there were {after['size']:,} when it was "
                "read; put the file back as it was, or start a new run"
            )
        events = TextEvents(str(self._source), self._roles, self._format(), after, size)

        def take() -> FileBatch:
            taken = events.take()
            return FileBatch(taken.frame, taken.rejected, {"size": length, **events.place()})

        chunks = self._chunks()
        try:
            for data in chunks:
                events.feed(data)
                while events.pending >= size:
                    yield take()
        except _Damage as damage:  # what could be read of the archive comes first
            while events.pending:
                yield take()
            raise damage.error from damage
        events.finish()
        while events.pending:
            yield take()

    def _format(self) -> Format | None:
        return "jsonl" if self._source.name.lower().endswith(_JSON_NAMES) else None

    def _chunks(self) -> Iterator[bytes]:
        pieces: list[bytes] = []
        try:
            with self._source._opened() as (_, file):
                # Reads that take what there is lose nothing when a later part is damaged.
                while data := cast(io.BufferedReader, file).read1(_CHUNK):
                    pieces.append(data)
                    if sum(map(len, pieces)) >= _CHUNK:  # archives give but a little at a time
                        yield b"".join(pieces)
                        pieces = []
        except CelrecError as error:
            yield b"".join(pieces)
            raise _Damage(error) from error
        yield b"".join(pieces)


class _Damage(Exception):  # noqa: N818
    """The file cannot be read further."""

    def __init__(self, error: CelrecError) -> None:
        super().__init__(str(error))
        self.error = error
