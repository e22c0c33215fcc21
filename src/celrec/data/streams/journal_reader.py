"""Events out of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from celrec.data.columns import Columns, further
from celrec.data.streams._json_values import json_objects
from celrec.data.streams._object_intake import ObjectIntake
from celrec.data.streams.events import Events
from celrec.data.streams.journal import Journal

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
