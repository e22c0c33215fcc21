"""What the reader needs of a log, whatever it is stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from celrec.data.columns import Columns
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class Batch:
    """Some consecutive rows of a log, with original ids.

    The columns are named by role: user, item, target (Float32), timestamp
    (Int64), and further ones as `columns.further` says. Null stands for a value that
    is missing or does not parse.
    """

    frame: pl.DataFrame
    locate: Callable[[int], tuple[str, dict[str, str]]]
    """Where a row of the frame stands in the log, and what is written there, by role."""
    dropped: int = 0
    """How many malformed rows were left out."""


class RawLog(Protocol):
    """A log that can be read in batches."""

    name: str
    columns: Columns

    def expected_rows(self) -> int:
        """About how many rows there are, 0 if that is not known beforehand."""

    def batches(self, drop_invalid: bool) -> Iterator[Batch]:
        """The rows in order; a malformed one raises, or is left out with `drop_invalid`."""


def time_as_integer(column: str, dtype: pl.DataType, name: str) -> pl.Expr:
    """Times as Int64: numbers as they are, dates as microseconds since 1970."""
    if dtype.is_numeric():
        return pl.col(column).cast(pl.Int64, strict=False)
    if dtype == pl.String:
        return pl.col(column).str.to_datetime(time_unit="us", strict=False).dt.epoch("us")
    if dtype in (pl.Date, pl.Datetime):
        return pl.col(column).dt.epoch("us")
    raise CelrecError(f"{name}: column {column!r} holds {dtype}, which is no time")
