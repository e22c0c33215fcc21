"""A journal: events are on the disk before they are acknowledged."""

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

_SEGMENT = 16 << 20  # bytes, after which a new file is begun
_SUFFIX = ".jsonl"


class Committed(NamedTuple):
    """How far a journal reaches."""

    events: int
    """How many there were, counted from its very beginning."""
    segment: int
    """The number of the first event of the last file."""
    size: int
    """So many bytes of that file count."""


class Journal:
    r"""A folder of JSON lines, one for each event, which new ones are put behind.

    Events are numbered from 0, for ever; a file is named by the number of its first event. So a
    place in the journal is one number: how many events lie before it. What `append` has returned
    from is on the disk, flushed; what it has raised for is cut off again. A line that was half
    written when the process died was never acknowledged, and is cut off when it is opened.

    One thread may append. Any may read what is `committed`: see `JournalReader`.

    >>> from tempfile import mkdtemp
    >>> journal = Journal(Path(mkdtemp(), "journal"))
    >>> journal.append(b'{"user": 1}\n{"user": 2}\n', 2)
    2
    >>> Journal(journal.path).committed
    Committed(events=2, segment=0, size=24)
    """

    def __init__(self, path: Path, learned: int = 0) -> None:
        """`learned` events are known to be somewhere else already: numbers go on after them."""
        self.path = path
        self._file: int | None = None
        self._doubtful = False
        try:
            self.path.mkdir(exist_ok=True)
            flush(self.path.parent)
            self.committed = self._found(learned)
        except OSError as error:
            raise CelrecError(
                f"{path}: cannot be the journal of events ({error.strerror}); make room, or choose "
                "a folder that you may write to"
            ) from error
        self._check(learned)

    def starts(self) -> list[int]:
        """The numbers of the first events of all files, in their order."""
        names = (path.name for path in self.path.glob(f"*{_SUFFIX}"))
        return sorted(int(name.removesuffix(_SUFFIX)) for name in names)

    def file(self, start: int) -> Path:
        """The file that begins with that event."""
        return self.path / f"{start:015d}{_SUFFIX}"

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        sizes = 0
        for start in self.starts():
            with suppress(FileNotFoundError):  # another thread has tidied up
                sizes += self.file(start).stat().st_size
        return sizes

    def append(self, lines: bytes, events: int) -> int:
        """Put whole lines behind all others, so many events; how many there are when it is safe.

        Raises OSError, and keeps nothing of them, if the disk does not take them.
        """
        if self._doubtful:
            self._cut_off()
        if self._file is None or self.committed.size >= _SEGMENT:
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
                self._cut_off()
            raise
        count, segment, size = self.committed
        self.committed = Committed(count + events, segment, size + len(lines))
        return self.committed.events

    def tidy(self, learned: Iterable[int]) -> None:
        """Remove files of which all events are before each of these places; the last one stays."""
        needed = min(learned, default=0)
        starts = self.starts()
        for start, following in pairwise(starts):
            if following <= needed:
                self.file(start).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _check(self, learned: int) -> None:
        """Complain if events that are still to be learned are missing."""
        starts = self.starts()
        ends = [(start, following) for start, following in pairwise(starts) if following > learned]
        reached = learned
        for start, following in [*ends, *((start, start) for start in starts[-1:])]:
            if start > reached:
                raise CelrecError(
                    f"{self.path}: the events {reached:,} to {start - 1:,} are missing; put their "
                    "file back, or move the folder away to go on without them"
                )
            reached = start + self.file(start).read_bytes().count(b"\n") if following > start else 0

    def _found(self, learned: int) -> Committed:
        """What an earlier process has left."""
        starts = self.starts()
        if not starts:
            return Committed(learned, learned, 0)
        data = self.file(starts[-1]).read_bytes()
        size = data.rfind(b"\n") + 1
        events = starts[-1] + data.count(b"\n")
        if events < learned:  # an older copy of the journal was put back
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

    def _cut_off(self) -> None:
        """Take back what was written and not acknowledged; the file is in doubt until it works."""
        if self._file is not None:
            os.ftruncate(self._file, self.committed.size)
            os.fsync(self._file)
        self._doubtful = False


_CHUNK = 1 << 20
_ROLES = {name: name for name in ("user", "item", "target", "timestamp")}


class JournalReader:
    r"""The events of a journal from some place on, whether it was written now or long ago.

    Its lines have the fields user, item, target and timestamp; and `ids:NAME` for each of the
    further columns, where there is such an id. `Events.offset` is `{"next": place}`.

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
        self._place = 0  # in the file
        self._data = b""

    def take(self, most: int) -> Events:
        """The next events, up to so many, as far as they are committed."""
        lines = self._lines(most)
        first = self.next
        self.next += len(lines)
        objects, problems = json_objects(lines)
        taken = self._intake.take(objects, problems, partial(self._locate, lines, first))
        frame = taken.frame.rename(self._names, strict=False)
        return Events(frame, {"next": self.next}, taken.rejected)

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
        """More of the file that holds that event; whether there was any."""
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
            room = committed.size - self._place if committed.segment == self._segment else -1
            while skip:  # what is before the first event that is asked for
                line = file.readline()
                if not line:
                    return False
                self._place += len(line)
                room -= len(line) if room >= 0 else 0
                skip -= 1
            data = file.read(_CHUNK if room < 0 else min(_CHUNK, room))
        self._place += len(data)
        self._data += data
        return bool(data)

    def _locate(self, lines: Sequence[bytes], first: int, row: int) -> tuple[str, str]:
        return f"journal, event {first + row}", lines[row].decode(errors="replace")
