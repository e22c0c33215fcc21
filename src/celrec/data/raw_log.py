"""Logs as they are stored, in tables or text files, before ids are encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.columns import Columns, further
from celrec.data.delimited import Delimited
from celrec.data.text_source import Block, Progress
from celrec.errors import CelrecError, first_line


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive rows of a log, with original ids.

    The columns are named by role: user, item, target (Float32), timestamp (Int64), and further
    ones by `columns.further`. Values that are missing or do not parse are null.
    """

    frame: pl.DataFrame
    locate: Callable[[int], tuple[str, dict[str, str]]]
    """The place of a row of the frame in the log, and the raw values there, by role."""
    dropped: int = 0
    """The number of malformed rows that were dropped."""


class RawLog(Protocol):
    """A log that can be read in batches."""

    name: str
    columns: Columns

    def expected_rows(self) -> int:
        """An estimate of the number of rows, 0 if unknown."""

    def batches(self, drop_invalid: bool) -> Iterator[Batch]:
        """The rows in order; a malformed one raises an error, or is dropped with `drop_invalid`."""


def time_as_integer(column: str, dtype: pl.DataType, name: str) -> pl.Expr:
    """Timestamps as Int64: numbers unchanged, dates as microseconds since 1970."""
    if dtype.is_numeric():
        return pl.col(column).cast(pl.Int64, strict=False)
    if dtype == pl.String:
        return pl.col(column).str.to_datetime(time_unit="us", strict=False).dt.epoch("us")
    if dtype in (pl.Date, pl.Datetime):
        return pl.col(column).dt.epoch("us")
    raise CelrecError(f"{name}: column {column!r} is {dtype}, not a time; cast it")


_BATCH_ROWS = 1 << 18


class TableLog(RawLog):
    """Reads a polars LazyFrame, only the columns with a role."""

    def __init__(self, frame: pl.LazyFrame, columns: Columns, name: str) -> None:
        try:
            schema = frame.collect_schema()
        except pl.exceptions.PolarsError as error:
            raise CelrecError(f"{name}: damaged parquet file ({first_line(error)})") from error
        self.name = name
        self.columns = columns.resolve(schema.names(), name)
        roles = self.columns.roles()
        wanted = [pl.col(roles["user"]).alias("user"), pl.col(roles["item"]).alias("item")]
        wanted.append(self._target(roles.get("target"), schema).alias("target"))
        if "timestamp" in roles:
            column = roles["timestamp"]
            wanted.append(time_as_integer(column, schema[column], name).alias("timestamp"))
        wanted += [pl.col(name).alias(further(name)) for name in columns.more]
        self._frame = frame.select(wanted)
        self._raw = frame.select(pl.col(column).alias(role) for role, column in roles.items())

    def expected_rows(self) -> int:
        return int(self._raw.select(pl.len()).collect().item())

    def batches(self, drop_invalid: bool) -> Iterator[Batch]:
        # Tables have no malformed rows, only nulls, which the reader handles.
        start = 0
        try:
            for frame in self._frame.collect_batches(chunk_size=_BATCH_ROWS, maintain_order=True):
                yield Batch(frame, partial(self._locate, start))
                start += len(frame)
        except pl.exceptions.PolarsError as error:
            raise CelrecError(f"{self.name}: cannot read ({first_line(error)})") from error

    def _locate(self, start: int, row: int) -> tuple[str, dict[str, str]]:
        values = self._raw.slice(start + row, 1).collect().row(0, named=True)
        return f"{self.name}, row {start + row + 1}", {k: str(v) for k, v in values.items()}

    def _target(self, column: str | None, schema: pl.Schema) -> pl.Expr:
        if column is None:  # implicit feedback
            return pl.lit(1, pl.Float32)
        dtype = schema[column]
        if dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null):
            return pl.col(column).cast(pl.Float32, strict=False)
        raise CelrecError(f"{self.name}: column {column!r} is {dtype}, not a number; cast it")


class TextLog(RawLog):
    """Reads a delimited file by blocks, parsing only the columns with a role.

    Ids are read as text, which preserves leading zeros.
    """

    def __init__(self, table: Delimited, columns: Columns, progress: Progress | None) -> None:
        self.name = str(table.source)
        self.columns = columns.resolve(table.names, self.name)
        self._table = table
        self._progress = progress

    def expected_rows(self) -> int:
        return self._table.source.estimated_lines()

    def batches(self, drop_invalid: bool) -> Iterator[Batch]:
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
            if "target" not in roles:  # implicit feedback
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
        """The dtype of the timestamp in the first row: an integer, another number, or a date."""
        place = self._table.names.index(column)
        value = next((f[place] for f in self._table.first_rows() if place < len(f)), "")
        for dtype, parse in ((pl.Int64, int), (pl.Float64, float)):
            try:
                parse(value)
            except ValueError:
                continue
            return dtype
        return pl.String if value else pl.Int64


_LIMITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6))
"""Upper limits of timestamps, and the ticks per second of their units."""


def ticks_per_second(time: int) -> int:
    """The ticks per second of a timestamp in seconds, milli-, micro- or nanoseconds.

    The unit is inferred from the size: 10¹¹ s is in the year 5138, 10¹¹ ms in 1973.

    >>> ticks_per_second(1_600_000_000), ticks_per_second(1_600_000_000_000)
    (1, 1000)
    """
    return next((ticks for limit, ticks in _LIMITS if abs(time) < limit), 10**9)


def in_unit(times: NDArray[np.int64], ticks: int) -> NDArray[np.int64]:
    """Convert timestamps of any units to the unit with `ticks` per second.

    Times out of range are clipped.

    >>> in_unit(np.array([1_600_000_000, 1_600_000_000_000]), 1000)
    array([1600000000000, 1600000000000])
    """
    sizes = np.abs(times.clip(-(2**63) + 1))
    own = np.select([sizes < limit for limit, _ in _LIMITS], [n for _, n in _LIMITS], 10**9)
    most = np.iinfo(np.int64).max // ticks - 1
    seconds = np.clip(times // own, -most, most)
    moved: NDArray[np.int64] = seconds * ticks + times % own * ticks // own
    return np.where(own == ticks, times, moved)
