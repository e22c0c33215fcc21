"""A log in a delimited text file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import polars as pl

from celrec.data._raw_log import Batch, time_as_integer
from celrec.data.columns import Columns
from celrec.data.delimited import Delimited
from celrec.data.text_source import Block, Progress


class TextLog:
    """Reads a delimited file block by block; only the columns that play a role are parsed.

    Ids are taken as text, so that leading zeros are not lost.
    """

    def __init__(self, table: Delimited, columns: Columns, progress: Progress | None) -> None:
        self.name = str(table.source)
        self.columns = columns.resolve(table.names, self.name)
        self._table = table
        self._progress = progress

    def expected_rows(self) -> int:
        """See `RawLog`."""
        return self._table.source.estimated_lines()

    def batches(self, drop_invalid: bool) -> Iterator[Batch]:
        """See `RawLog`."""
        roles = self.columns.roles()
        types: dict[str, type[pl.DataType]] = {
            roles["user"]: pl.String,
            roles["item"]: pl.String,
        }
        if "target" in roles:
            types[roles["target"]] = pl.Float32
        if "timestamp" in roles:
            types[roles["timestamp"]] = self._time_type(roles["timestamp"])
        types |= dict.fromkeys(self.columns.more, pl.String)
        names = {column: role for role, column in self.columns.sources().items()}
        frames = self._table.frames(types, drop=drop_invalid, progress=self._progress)
        for block, frame, dropped in frames:
            frame.columns = [names[column] for column in frame.columns]
            if frame.get_column("user").null_count():
                frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))  # empty lines
            if "target" not in roles:  # it happened, and that is all
                frame = frame.with_columns(target=pl.lit(1, pl.Float32))
            dtype = frame.schema.get("timestamp", pl.Int64())
            if dtype != pl.Int64:
                frame = frame.with_columns(time_as_integer("timestamp", dtype, self.name))
            yield Batch(frame, partial(self._locate, block), dropped)

    def _locate(self, block: Block, row: int) -> tuple[str, dict[str, str]]:
        places = {r: self._table.names.index(c) for r, c in self.columns.roles().items()}
        for line, fields in self._table.numbered_rows(block):
            values = {r: fields[i] for r, i in places.items() if i < len(fields)}
            if not any(values.values()):
                continue
            if row == 0:
                return f"{self.name}, line {line}", values
            row -= 1
        return self.name, {}

    def _time_type(self, column: str) -> type[pl.DataType]:
        """How the first row writes the time: as an integer, another number, or a date."""
        place = self._table.names.index(column)
        value = next((f[place] for f in self._table.first_rows() if place < len(f)), "")
        for dtype, parse in ((pl.Int64, int), (pl.Float64, float)):
            try:
                parse(value)
            except ValueError:
                continue
            return dtype
        return pl.String if value else pl.Int64
