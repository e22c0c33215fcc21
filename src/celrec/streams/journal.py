"""A write-ahead log of events, and its reader."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from celrec.data.columns import Columns, further
from celrec.errors import CelrecError
from celrec.runtime.atomic import flush
from celrec.streams.events import Events
from celrec.streams.fields import json_objects
from celrec.streams.object_intake import ObjectIntake

SEGMENT = 16 << 20  # bytes after which a new file is started
_SUFFIX = ".jsonl"


class Committed(NamedTuple):
    """The end of the committed part of a journal."""

    events: int
    """The number of events since the start of the journal."""
    segment: int
    """The number of the first event of the last file."""
    size: int
    """The committed bytes of that file."""


class Journal:
    r"""An append-only folder of files of JSON lines, one line per event.

    Events are numbered from 0 for the life of the journal, and a file is named by the number of
    its first event. So a position is one number: the number of events before it. When `append`
    returns, its events are flushed to disk; when it raises an error, they are removed. A partial
    line of a killed process was never acknowledged, and is removed when the journal is opened.

    One thread may append. Any thread may read what is `committed`, with a `JournalReader`.

    >>> from tempfile import mkdtemp
    >>> journal = Journal(Path(mkdtemp(), "journal"))
    >>> journal.append(b'{"user": 1}\n{"user": 2}\n', 2)
    2
    >>> Journal(journal.path).committed
    Committed(events=2, segment=0, size=24)
    """

    def __init__(self, path: Path, learned: int = 0) -> None:
        """Open or create a journal; the first `learned` events are already in a model."""
        self.path = path
        self._file: int | None = None
        self._doubtful = False
        try:
            self.path.mkdir(exist_ok=True)
            flush(self.path.parent)
            self.committed = self._found(learned)
        except OSError as error:
            raise CelrecError(
                f"{path}: cannot be the journal of events ({error.strerror}); free disk space, or "
                "choose a folder that you may write to"
            ) from error
        self._check(learned)

    def starts(self) -> list[int]:
        """The numbers of the first events of all files, ascending."""
        names = (path.name for path in self.path.glob(f"*{_SUFFIX}"))
        return sorted(int(name.removesuffix(_SUFFIX)) for name in names)

    def file(self, start: int) -> Path:
        """The file whose first event has this number."""
        return self.path / f"{start:015d}{_SUFFIX}"

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        sizes = 0
        for start in self.starts():
            with suppress(FileNotFoundError):  # removed by another thread
                sizes += self.file(start).stat().st_size
        return sizes

    def append(self, lines: bytes, events: int) -> int:
        """Append lines of `events` events, flush them, and return the new number of events.

        Raises an OSError and removes all of them if the disk does not accept them.
        """
        if self._doubtful:
            self._truncate()
        if self._file is None or self.committed.size >= SEGMENT:
            self._begin_file()
        assert self._file is not None  # noqa: S101  (for the type checker)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fdatasync(self._file)
        except OSError:
            self._doubtful = True
            with suppress(OSError):
                self._truncate()
            raise
        count, segment, size = self.committed
        self.committed = Committed(count + events, segment, size + len(lines))
        return self.committed.events

    def tidy(self, learned: Iterable[int]) -> None:
        """Remove files whose events are before all of these positions, except the last file."""
        needed = min(learned, default=0)
        starts = self.starts()
        for start, following in pairwise(starts):
            if following <= needed:
                self.file(start).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _check(self, learned: int) -> None:
        starts = self.starts()
        ends = [(start, following) for start, following in pairwise(starts) if following > learned]
        reached = learned
        for start, following in [*ends, *((start, start) for start in starts[-1:])]:
            if start > reached:
                raise CelrecError(
                    f"{self.path}: the events {reached:,} to {start - 1:,} are missing; restore "
                    "their file, or move the folder away to continue without them"
                )
            reached = start + self.file(start).read_bytes().count(b"\n") if following > start else 0

    def _found(self, learned: int) -> Committed:
        """The state of existing files, after removing a partial last line."""
        starts = self.starts()
        if not starts:
            return Committed(learned, learned, 0)
        data = self.file(starts[-1]).read_bytes()
        size = data.rfind(b"\n") + 1
        events = starts[-1] + data.count(b"\n")
        if events < learned:  # an older copy of the journal was restored
            return Committed(learned, learned, 0)
        self._file = os.open(self.file(starts[-1]), os.O_WRONLY | os.O_APPEND)
        if size < len(data):
            os.ftruncate(self._file, size)
            os.fsync(self._file)
        return Committed(events, starts[-1], size)

    def _begin_file(self) -> None:
        self.close()
        start = self.committed.events
        self._file = os.open(
            self.file(start), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o644
        )
        self.committed = Committed(start, start, 0)
        flush(self.path)

    def _truncate(self) -> None:
        """Remove uncommitted bytes; the file stays in doubt until this succeeds."""
        if self._file is not None:
            os.ftruncate(self._file, self.committed.size)
            os.fsync(self._file)
        self._doubtful = False


_CHUNK = 1 << 20
_ROLES = {name: name for name in ("user", "item", "target", "timestamp")}


class JournalReader:
    r"""Reads the committed events of a journal from a position on.

    Lines have the fields user, item, target and timestamp, and optionally `ids:NAME` for further
    columns. `Events.offset` is `{"next": position}`.

    >>> from pathlib import Path; from tempfile import mkdtemp
    >>> journal = Journal(Path(mkdtemp(), "journal"))
    >>> line = b'{"user": "ann", "item": %d, "target": 1.0, "timestamp": 5}\n'
    >>> _ = journal.append(line % 7 + line % 8 + line % 9, 3)
    >>> reader = JournalReader(journal, after=1)
    >>> events = reader.take(10)
    >>> events.frame["item"].to_list(), events.offset, len(reader.take(10).frame)
    ([8, 9], {'next': 3}, 0)
    """

    def __init__(self, journal: Journal, after: int, columns: Sequence[str] = ()) -> None:
        self.next = after
        """The number of the next event."""
        self._journal = journal
        self._names = {further(further(name)): further(name) for name in columns}
        self._intake = ObjectIntake(
            Columns(more=tuple(map(further, columns))), {"columns": _ROLES, "dates": False}
        )
        self._segment: int | None = None
        self._place = 0  # offset in the file
        self._data = b""

    def take(self, most: int) -> Events:
        """Up to `most` of the next committed events."""
        lines = self._lines(most)
        first = self.next
        self.next += len(lines)
        objects, problems = json_objects(lines)
        parsed = self._intake.take(objects, problems, partial(self._locate, lines, first))
        frame = parsed.frame.rename(self._names, strict=False)
        return Events(frame, {"next": self.next}, parsed.rejected)

    def _lines(self, most: int) -> list[bytes]:
        lines: list[bytes] = []
        while len(lines) < most and self.next + len(lines) < self._journal.committed.events:
            if b"\n" not in self._data and not self._read(self.next + len(lines)):
                break
            *whole, rest = self._data.split(b"\n", most - len(lines))
            lines += whole
            self._data = rest
        return lines

    def _read(self, number: int) -> bool:
        """Read more of the file with this event; False if there is nothing more."""
        committed = self._journal.committed
        starts = [start for start in self._journal.starts() if start <= number]
        if not starts:
            return False
        if starts[-1] != self._segment:
            self._segment, self._place, self._data = starts[-1], 0, b""
            skip = number - starts[-1]
        else:
            skip = 0
        with self._journal.file(self._segment).open("rb") as file:
            file.seek(self._place)
            limit = committed.size - self._place if committed.segment == self._segment else -1
            while skip:  # lines before the requested event
                line = file.readline()
                if not line:
                    return False
                self._place += len(line)
                limit -= len(line) if limit >= 0 else 0
                skip -= 1
            data = file.read(_CHUNK if limit < 0 else min(_CHUNK, limit))
        self._place += len(data)
        self._data += data
        return bool(data)

    def _locate(self, lines: Sequence[bytes], first: int, row: int) -> tuple[str, str]:
        return f"journal, event {first + row}", lines[row].decode(errors="replace")
