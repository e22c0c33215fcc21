"""What the reader needs of a log, whatever it is stored in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import polars as pl

from celrec.data.columns import Columns
from celrec.errors import CelrecError


class RawLog(Protocol):
    """A log with original ids that can be read in batches."""

    name: str
    columns: Columns

    def batches(self, drop_invalid: bool) -> Iterator[pl.DataFrame]:
        """Frames with columns named by role: user, item, target (Float32), timestamp (Int64).

        Null stands for a value that is missing or does not parse.
        """

    def locate(self, row: int) -> tuple[str, dict[str, str]]:
        """Where `row` of the latest batch stands in the log, and what stands there, by role."""


def time_as_integer(column: str, dtype: pl.DataType, name: str) -> pl.Expr:
    """Times as Int64: numbers as they are, dates as microseconds since 1970."""
    if dtype.is_integer():
        return pl.col(column).cast(pl.Int64, strict=False)
    if dtype.is_float():
        return pl.col(column).cast(pl.Int64, strict=False)
    if dtype == pl.String:
        return pl.col(column).str.to_datetime(time_unit="us", strict=False).dt.epoch("us")
    if dtype in (pl.Date, pl.Datetime):
        return pl.col(column).dt.epoch("us")
    raise CelrecError(f"{name}: column {column!r} holds {dtype}, which is no time")
