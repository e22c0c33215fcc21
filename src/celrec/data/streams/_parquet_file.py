"""The events of a parquet file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl

from celrec.data.columns import Columns
from celrec.data.streams._event_file import FileBatch
from celrec.data.streams._intake import Intake, check_types
from celrec.data.streams.events import Offset
from celrec.errors import CelrecError

_ROWS = 1 << 16
_FOOTER = 1 << 12


class ParquetFile:
    """Reads a parquet file some row groups at a time; only the columns that play a role."""

    def __init__(self, path: Path, roles: Columns) -> None:
        self._path, self._roles = path, roles

    def batches(self, size: int, after: Offset) -> Iterator[FileBatch]:
        """See `EventFile`."""
        identity = self._identity()
        if after and identity != {name: after.get(name) for name in identity}:
            raise CelrecError(
                f"{self._path}: the file has changed since it was read; "
                "put it back as it was, or start a new run"
            )
        row, intake = after.get("row", 0), Intake(after.get("dates"))
        for block in self._blocks(row, size):
            while len(block):
                at_once = len(block) if intake.settled(block.schema) else size
                raw, block = block[:at_once], block[at_once:]
                for taken in intake.take(raw, {}, partial(self._locate, raw, row)).batches(size):
                    row += len(taken)
                    place = {**identity, "row": row, "dates": intake.dates}
                    yield FileBatch(taken.frame, taken.rejected, place)

    def _blocks(self, row: int, size: int) -> Iterator[pl.DataFrame]:
        """The columns by role, whole batches of `size` rows at a time except for the last."""
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
            reason = str(error).partition("\n")[0]
            raise CelrecError(f"{self._path}: damaged parquet file ({reason})") from error

    def _identity(self) -> Offset:
        """What tells the file from another: its length, and the end, where its layout stands."""
        length = self._path.stat().st_size
        with self._path.open("rb") as file:
            file.seek(max(length - _FOOTER, 0))
            return {"size": length, "crc": zlib.crc32(file.read())}

    def _locate(self, raw: pl.DataFrame, before: int, number: int) -> tuple[str, str]:
        written = json.dumps(raw.row(number, named=True), default=str, ensure_ascii=False)
        return f"{self._path}, row {before + number + 1}", written
