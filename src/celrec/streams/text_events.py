"""Events from a text that comes in pieces."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import polars as pl

from celrec.data.columns import Columns
from celrec.data.delimited import Delimited
from celrec.data.text_source import BYTE_ORDER_MARK, TextSource
from celrec.errors import CelrecError
from celrec.streams.events import Offset, Taken, no_events
from celrec.streams.fields import fields, json_objects
from celrec.streams.intake import Intake
from celrec.streams.object_intake import ObjectIntake
from celrec.streams.records import LONGEST_LINE, Records, RecordSplitter

Format: TypeAlias = Literal["csv", "jsonl"]
"""How the events of a text are written: in delimited fields, or one JSON object a line."""

_BLOCK = 1 << 16  # records that are parsed at once, at most: a call takes long for a few


class TextEvents:
    r"""Events of a text in either format; which one it is follows from the first line.

    `feed` it with the text, from its beginning, and `take` events, `size` records at a time,
    as long as some are `pending`. Rows before the offset `after` are passed over unread.

    >>> events = TextEvents("log", Columns(), None, {}, size=10)
    >>> events.feed(b"user,item,stars\n1,a,5\n2,b,?\n3")
    >>> taken = events.take()
    >>> taken.frame.rows(), taken.rejected[0].place, taken.rejected[0].reason
    ([('1', 'a', 5.0)], 'log, line 3', "target '?' is not a finite number")
    >>> events.place()["row"]
    2
    """

    def __init__(
        self, name: str, roles: Columns, written_as: Format | None, after: Offset, size: int
    ) -> None:
        self._name, self._roles, self._format, self._after = name, roles, written_as, after
        self._size = size
        self._skip: int = after.get("row", 0)
        self._row = self._skip
        self._head = b""
        self._splitter: RecordSplitter | None = None
        self._parser: _Parser | None = None
        self._crc: int | None = after.get("crc")
        self._parts: deque[Records] = deque()
        self._parsed: Iterator[Taken] = iter(())
        self.pending = 0
        """How many records can be taken."""

    def feed(self, data: bytes) -> None:
        """The next piece of the text."""
        splitter = self._splitter
        if splitter is None:
            data = self._head = self._head + data
            line, end, _ = self._first_line()
            if len(line) > LONGEST_LINE:
                raise CelrecError(f"{self._name}: a first line of over {LONGEST_LINE >> 20} MiB")
            if not end:
                return
            splitter = self._splitter = self._begin(line)
            data, self._head = self._head.removeprefix(BYTE_ORDER_MARK), b""
        self._add(splitter.feed(data))

    def finish(self) -> None:
        """Nothing more comes."""
        if self._splitter is None and self._first_line()[0]:
            self.feed(b"\n")
        if self._splitter is not None:
            self._add(self._splitter.finish())
        if self._skip:
            raise CelrecError(
                f"{self._name}: ends {self._skip:,} rows before the place where reading is to go "
                "on; go on with the same events, or start a new run"
            )

    def take(self) -> Taken:
        """The next `size` records, or as many as there are."""
        taken = next(self._parsed, None)
        if taken is None:
            if self._parser is None or not self._parts:
                return Taken(no_events())
            self._parsed = self._parser.parse(self._block(), self._name, self._size)
            taken = next(self._parsed)
        self.pending -= len(taken)
        self._row += len(taken)
        return taken

    def place(self) -> Offset:
        """What to remember in the offset: after how many rows of which text, read in what way."""
        state = self._parser.state() if self._parser is not None else {}
        return {"row": self._row, "crc": self._crc, **state}

    def _first_line(self) -> tuple[bytes, bytes, bytes]:
        """The first line that is not blank, its end if that has come, and the rest."""
        return self._head.removeprefix(BYTE_ORDER_MARK).lstrip(b" \r\n").partition(b"\n")

    def _begin(self, line: bytes) -> RecordSplitter:
        """Tell from the first line how the text is to be read."""
        line = line.rstrip(b"\r")
        crc = zlib.crc32(line)
        if self._row and crc != self._crc:
            raise CelrecError(
                f"{self._name}: not what was read before, its first line is another one; "
                "go on with the same events, or start a new run"
            )
        self._crc = crc
        if self._format == "jsonl" or (self._format is None and line.startswith(b"{")):
            self._parser = _JsonParser(ObjectIntake(self._roles, self._after))
            return RecordSplitter(self._name, None)
        table = Delimited.at(_FirstLine(Path(self._name), None, line))
        columns = self._roles.resolve(table.names, self._name)
        self._parser = _DelimitedParser(table, columns, Intake(self._after.get("dates")))
        self._skip += table.has_header
        return RecordSplitter(self._name, table.separator.encode() if table.quoted else None)

    def _block(self) -> Records:
        """As many whole batches as there are, within reason; what there is if that is none."""
        batches = min(self.pending, max(_BLOCK, self._size)) // self._size
        size = batches * self._size or self.pending
        parts = []
        while size:
            part = self._parts.popleft()
            if len(part) > size:
                self._parts.appendleft(part.part(size, len(part)))
                part = part.part(0, size)
            size -= len(part)
            parts.append(part)
        return Records.joined(parts)

    def _add(self, records: Records) -> None:
        passed = min(self._skip, len(records))
        self._skip -= passed
        if passed < len(records):
            self._parts.append(records.part(passed, len(records)))
            self.pending += len(records) - passed


class _Parser(Protocol):
    def parse(self, records: Records, name: str, size: int) -> Iterator[Taken]:
        """What is in the records, `size` of them at a time; `state` keeps pace with it."""

    def state(self) -> Offset: ...


@dataclass(frozen=True, slots=True)
class _DelimitedParser:
    table: Delimited
    columns: Columns
    intake: Intake

    def parse(self, records: Records, name: str, size: int) -> Iterator[Taken]:
        texts = dict.fromkeys(self.columns.sources(), pl.String())
        while records:
            at_once = len(records) if self.intake.settled(texts) else size
            yield from self._taken(records.part(0, at_once), name).batches(size)
            records = records.part(at_once, len(records))

    def _taken(self, records: Records, name: str) -> Taken:
        sources = self.columns.sources()
        raw, problems = fields(records, self.table, tuple(sources.values()))
        raw = pl.DataFrame({role: raw.get_column(column) for role, column in sources.items()})
        return self.intake.take(raw, problems, lambda row: _locate(records, name, row))

    def state(self) -> Offset:
        return {"dates": self.intake.dates}


@dataclass(frozen=True, slots=True)
class _JsonParser:
    intake: ObjectIntake

    def parse(self, records: Records, name: str, size: int) -> Iterator[Taken]:
        values = records.values()
        batches = (json_objects(values[at : at + size]) for at in range(0, len(values), size))
        return self.intake.take_all(batches, lambda row: _locate(records, name, row))

    def state(self) -> Offset:
        return self.intake.state()


@dataclass(frozen=True, slots=True)
class _FirstLine(TextSource):
    """A text of which only the first line is there yet."""

    line: bytes = b""

    def first_line(self, encoding: str = "utf-8") -> str:
        try:
            return self.line.decode(encoding)
        except UnicodeDecodeError as error:
            raise CelrecError(f"{self}, line 1: not UTF-8 text; convert it first") from error


def _locate(records: Records, name: str, row: int) -> tuple[str, str]:
    return f"{name}, line {records.lines[row]}", records.raw(row).decode(errors="replace")
