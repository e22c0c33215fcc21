"""Text and parquet files of events, read in batches from any position."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import polars as pl

from celrec.data.columns import Columns
from celrec.data.text_source import TextSource
from celrec.errors import CelrecError, first_line
from celrec.streams.events import Offset, Rejected
from celrec.streams.intake import Intake, check_types
from celrec.streams.text_events import Format, TextEvents


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Consecutive events of one file."""

    frame: pl.DataFrame
    rejected: tuple[Rejected, ...]
    place: Offset
    """The position after these events."""


class EventFile(Protocol):
    """A file of events."""

    def batches(self, size: int, after: Offset) -> Iterator[FileBatch]:
        """The events after a position (all if it is empty), in batches of `size` rows.

        Batch boundaries depend on the contents and `size` only. Raises an error if the file has
        changed since the position was recorded.
        """


_CHUNK = 1 << 20
_JSON_NAMES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")


class TextFile(EventFile):
    """Reads delimited rows or JSON lines, plain or compressed."""

    def __init__(self, source: TextSource, roles: Columns) -> None:
        self._source, self._roles = source, roles

    def batches(self, size: int, after: Offset) -> Iterator[FileBatch]:
        length = self._source.path.stat().st_size
        if length < after.get("size", 0):
            raise CelrecError(
                f"{self._source}: the file has {length:,} bytes and had {after['size']:,} when it "
                "was read; restore the file, or start a new run"
            )
        events = TextEvents(str(self._source), self._roles, self._format(), after, size)

        def take() -> FileBatch:
            parsed = events.take()
            return FileBatch(parsed.frame, parsed.rejected, {"size": length, **events.place()})

        chunks = self._chunks()
        try:
            for data in chunks:
                events.feed(data)
                while events.pending >= size:
                    yield take()
        except _Damage as damage:  # first return the events before the damage
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
            with self._source.opened() as (_, file):
                # `read1` returns all data before a damaged part.
                while data := cast(io.BufferedReader, file).read1(_CHUNK):
                    pieces.append(data)
                    if sum(map(len, pieces)) >= _CHUNK:  # archives return small pieces
                        yield b"".join(pieces)
                        pieces = []
        except CelrecError as error:
            yield b"".join(pieces)
            raise _Damage(error) from error
        yield b"".join(pieces)


class _Damage(Exception):  # noqa: N818
    """The rest of the file cannot be read."""

    def __init__(self, error: CelrecError) -> None:
        super().__init__(str(error))
        self.error = error


_ROWS = 1 << 16
_FOOTER = 1 << 12


class ParquetFile(EventFile):
    """Reads a parquet file by row groups, only the columns with a role."""

    def __init__(self, path: Path, roles: Columns) -> None:
        self._path, self._roles = path, roles

    def batches(self, size: int, after: Offset) -> Iterator[FileBatch]:
        identity = self._identity()
        if after and identity != {name: after.get(name) for name in identity}:
            raise CelrecError(
                f"{self._path}: the file has changed since it was read; "
                "restore the file, or start a new run"
            )
        row, intake = after.get("row", 0), Intake(after.get("dates"))
        for block in self._blocks(row, size):
            while len(block):
                at_once = len(block) if intake.settled(block.schema) else size
                raw, block = block[:at_once], block[at_once:]
                for parsed in intake.take(raw, {}, partial(self._locate, raw, row)).batches(size):
                    row += len(parsed)
                    place = {**identity, "row": row, "dates": intake.dates}
                    yield FileBatch(parsed.frame, parsed.rejected, place)

    def _blocks(self, row: int, size: int) -> Iterator[pl.DataFrame]:
        """The columns by role, in multiples of `size` rows except for the last."""
        try:
            scan = pl.scan_parquet(self._path)
            columns = self._roles.resolve(scan.collect_schema().names(), str(self._path))
            scan = scan.select(pl.col(name).alias(role) for role, name in columns.sources().items())
            check_types(str(self._path), scan.collect_schema())
            rest = scan.clear().collect()
            for frame in scan.slice(row).collect_batches(chunk_size=_ROWS, maintain_order=True):
                rest = pl.concat([rest, frame])
                whole = len(rest) // size * size
                if whole:
                    yield rest[:whole]
                rest = rest[whole:]
            if len(rest):
                yield rest
        except pl.exceptions.PolarsError as error:
            raise CelrecError(
                f"{self._path}: damaged parquet file ({first_line(error)})"
            ) from error

    def _identity(self) -> Offset:
        """The file's length, and the CRC of its end with the footer."""
        length = self._path.stat().st_size
        with self._path.open("rb") as file:
            file.seek(max(length - _FOOTER, 0))
            return {"size": length, "crc": zlib.crc32(file.read())}

    def _locate(self, raw: pl.DataFrame, before: int, number: int) -> tuple[str, str]:
        written = json.dumps(raw.row(number, named=True), default=str, ensure_ascii=False)
        return f"{self._path}, row {before + number + 1}", written


_PARQUET = b"PAR1"


def opened_file(path: str | Path, roles: Columns) -> EventFile:
    """Open a file: parquet by its first bytes, else text, perhaps compressed."""
    source = TextSource.at(path)
    try:
        magic = source.magic()
    except OSError as error:
        raise CelrecError(f"{path}: cannot read ({error.strerror})") from error
    if magic == _PARQUET:
        return ParquetFile(source.path, roles)
    if source.path.suffix.lower() == ".parquet":
        raise CelrecError(f"{path}: not a parquet file, despite its name")
    return TextFile(source, roles)
