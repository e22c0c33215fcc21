"""Parsing events from text that arrives in chunks."""

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
from celrec.streams.events import Offset, ParsedRows, no_events
from celrec.streams.fields import fields, json_objects
from celrec.streams.intake import Intake
from celrec.streams.object_intake import ObjectIntake
from celrec.streams.records import LONGEST_LINE, Records, RecordSplitter

Format: TypeAlias = Literal["csv", "jsonl"]
"""The format of a text: delimited fields, or one JSON object per line."""

BLOCK = 1 << 16  # records parsed at once, since calls have a fixed cost


class TextEvents:
    r"""Events of a text in either format, which is inferred from the first line.

    `feed` the text from its beginning, and `take` events, `size` records at a time, while some
    are `pending`. Rows before the offset `after` are skipped.

    >>> events = TextEvents("log", Columns(), None, {}, size=10)
    >>> events.feed(b"user,item,stars\n1,a,5\n2,b,?\n3")
    >>> parsed = events.take()
    >>> parsed.frame.rows(), parsed.rejected[0].place, parsed.rejected[0].reason
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
        self._parsed: Iterator[ParsedRows] = iter(())
        self.pending = 0
        """The number of complete records."""

    def feed(self, data: bytes) -> None:
        """Add the next chunk of the text."""
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
        """Mark the end of the text."""
        if self._splitter is None and self._first_line()[0]:
            self.feed(b"\n")
        if self._splitter is not None:
            self._add(self._splitter.finish())
        if self._skip:
            raise CelrecError(
                f"{self._name}: ends {self._skip:,} rows before the position to resume from; "
                "use the same events, or start a new run"
            )

    def take(self) -> ParsedRows:
        """Up to `size` of the next records."""
        parsed = next(self._parsed, None)
        if parsed is None:
            if self._parser is None or not self._parts:
                return ParsedRows(no_events())
            self._parsed = self._parser.parse(self._block(), self._name, self._size)
            parsed = next(self._parsed)
        self.pending -= len(parsed)
        self._row += len(parsed)
        return parsed

    def place(self) -> Offset:
        """The position as part of an offset: rows, CRC of the first line, and parser state."""
        state = self._parser.state() if self._parser is not None else {}
        return {"row": self._row, "crc": self._crc, **state}

    def _first_line(self) -> tuple[bytes, bytes, bytes]:
        """The first line that is not blank, its line break if it is complete, and the rest."""
        return self._head.removeprefix(BYTE_ORDER_MARK).lstrip(b" \r\n").partition(b"\n")

    def _begin(self, line: bytes) -> RecordSplitter:
        """Choose the parser by the first line."""
        line = line.rstrip(b"\r")
        crc = zlib.crc32(line)
        if self._row and crc != self._crc:
            raise CelrecError(
                f"{self._name}: the first line is not the one that was read before; "
                "use the same events, or start a new run"
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
        """Whole batches, up to about `BLOCK` records; all records if there is no whole batch."""
        batches = min(self.pending, max(BLOCK, self._size)) // self._size
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
    def parse(self, records: Records, name: str, size: int) -> Iterator[ParsedRows]:
        """Parse records in batches of `size`; `state` is updated with each batch."""

    def state(self) -> Offset: ...


@dataclass(frozen=True, slots=True)
class _DelimitedParser:
    table: Delimited
    columns: Columns
    intake: Intake

    def parse(self, records: Records, name: str, size: int) -> Iterator[ParsedRows]:
        texts = dict.fromkeys(self.columns.sources(), pl.String())
        while records:
            at_once = len(records) if self.intake.settled(texts) else size
            yield from self._parse_all(records.part(0, at_once), name).batches(size)
            records = records.part(at_once, len(records))

    def _parse_all(self, records: Records, name: str) -> ParsedRows:
        sources = self.columns.sources()
        raw, problems = fields(records, self.table, tuple(sources.values()))
        raw = pl.DataFrame({role: raw.get_column(column) for role, column in sources.items()})
        return self.intake.take(raw, problems, lambda row: _locate(records, name, row))

    def state(self) -> Offset:
        return {"dates": self.intake.dates}


@dataclass(frozen=True, slots=True)
class _JsonParser:
    intake: ObjectIntake

    def parse(self, records: Records, name: str, size: int) -> Iterator[ParsedRows]:
        values = records.values()
        batches = (json_objects(values[at : at + size]) for at in range(0, len(values), size))
        return self.intake.take_all(batches, lambda row: _locate(records, name, row))

    def state(self) -> Offset:
        return self.intake.state()


@dataclass(frozen=True, slots=True)
class _FirstLine(TextSource):
    """A text of which only the first line has arrived."""

    line: bytes = b""

    def first_line(self, encoding: str = "utf-8") -> str:
        try:
            return self.line.decode(encoding)
        except UnicodeDecodeError as error:
            raise CelrecError(f"{self}, line 1: not UTF-8 text; convert it first") from error


def _locate(records: Records, name: str, row: int) -> tuple[str, str]:
    return f"{name}, line {records.lines[row]}", records.raw(row).decode(errors="replace")
