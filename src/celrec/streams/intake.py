"""Validation of events: ids, targets and timestamps."""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.raw_log import time_as_integer
from celrec.errors import CelrecError
from celrec.streams.events import ParsedRows, Rejected

_DAYS = ("%Y-%m-%d", "%d-%m-%Y")
_TIMES = ("T%H:%M:%S%.f%#z", "T%H:%M:%S%.f", "", "T%H:%M")
_SLASHED = r"^(\d+)/(\d+)/(\d+)"


def as_times(
    values: pl.Series, usable: NDArray[np.bool_], dates: bool | None
) -> tuple[pl.Series, bool | None]:
    """Timestamps as Int64, with null for invalid ones, and whether they are dates.

    Numbers are not changed, and dates become microseconds since 1970. A source has either
    numbers or dates: the first valid timestamp of the `usable` rows decides, unless `dates` is
    given.

    >>> as_times(pl.Series(["1970-01-02", "7"]), np.array([True, True]), None)[0].to_list()
    [86400000000, None]
    """
    if values.dtype != pl.String:
        dated = values.dtype in (pl.Date, pl.Datetime)
        if values.dtype in (pl.Null, pl.Boolean) or dates not in (None, dated):
            return _nothing(values), dates
        return values.to_frame("t").select(
            time_as_integer("t", values.dtype, "")
        ).to_series(), dated
    if dates is None:
        numbers = _numbers(values)
        known = (numbers.is_not_null() | _dates(values).is_not_null()).to_numpy() & usable
        if known.any():
            dates = numbers[int(np.argmax(known))] is None
    return (_dates(values) if dates else _numbers(values)), dates


def _nothing(values: pl.Series) -> pl.Series:
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(values))


def _numbers(texts: pl.Series) -> pl.Series:
    whole = texts.cast(pl.Int64, strict=False)
    if whole.null_count() == texts.null_count():
        return whole
    rounded = texts.cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)
    return whole.fill_null(rounded)


def _dates(texts: pl.Series) -> pl.Series:
    plain = texts.str.replace(_SLASHED, "$1-$2-$3").str.replace(" ", "T", literal=True)
    times = _nothing(texts)
    for day, time in itertools.product(_DAYS, _TIMES):
        if times.null_count() == texts.null_count():
            break
        zone = "UTC" if time.endswith("z") else None
        parsed = plain.str.to_datetime(day + time, time_unit="us", time_zone=zone, strict=False)
        times = times.fill_null(parsed.dt.epoch("us"))
    return times


EXACT_FLOAT = 2.0**53
"""The largest integer up to which floats are exact."""

_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


class Intake:
    """Converts raw columns of events, and rejects invalid rows.

    >>> intake = Intake()
    >>> raw = pl.DataFrame({"user": ["1", "2"], "item": ["a", "b"], "target": ["5", "five"]})
    >>> parsed = intake.take(raw, {}, lambda row: (f"line {row + 1}", ""))
    >>> parsed.frame.rows(), parsed.rejected[0].place, parsed.rejected[0].reason
    ([('1', 'a', 5.0)], 'line 2', "target 'five' is not a finite number")
    """

    def __init__(self, dates: bool | None = None) -> None:
        self.dates = dates
        """Whether timestamps are dates or numbers; None before the first timestamp."""

    def settled(self, schema: Mapping[str, pl.DataType]) -> bool:
        """Whether rows are converted independently, so that batches can be joined."""
        # Integers that may exceed Int64 become texts, for a whole batch.
        wide = any(dtype.is_integer() and dtype not in _INTEGERS for dtype in schema.values())
        return not wide and (self.dates is not None or "timestamp" not in schema)

    def take(
        self,
        raw: pl.DataFrame,
        problems: Mapping[int, str],
        locate: Callable[[int], tuple[str, str]],
    ) -> ParsedRows:
        """Convert rows, and reject invalid ones.

        Args:
            raw: Columns named as in `Events`.
            problems: Reasons for rows that are already known to be invalid.
            locate: Returns the place and the raw text of a row.

        """
        reasons = dict(problems)
        columns: dict[str, pl.Series] = {}
        usable = np.ones(len(raw), bool)
        usable[list(problems)] = False

        def probe(role: str, unusable: NDArray[np.bool_]) -> None:
            for row in np.flatnonzero(unusable & usable).tolist():
                reasons[row] = reason(role, raw.get_column(role)[row], self.dates)
            usable[unusable] = False

        for role in ("user", "item"):
            columns[role] = _ids(raw.get_column(role))
            if columns[role].null_count():
                probe(role, columns[role].is_null().to_numpy())
        if "target" in raw.columns:
            target = raw.get_column("target").cast(pl.Float64, strict=False).cast(pl.Float32)
        else:  # implicit feedback
            target = pl.Series(np.ones(len(raw), np.float32))
        columns["target"] = target
        probe("target", ~np.isfinite(target.to_numpy()))  # null becomes NaN
        if "timestamp" in raw.columns:
            times, self.dates = as_times(raw.get_column("timestamp"), usable, self.dates)
            columns["timestamp"] = times
            if times.null_count():
                probe("timestamp", times.is_null().to_numpy())
        columns |= {name: _ids(raw.get_column(name)) for name in raw.columns if name not in columns}
        frame = pl.DataFrame(columns)
        if not reasons:
            return ParsedRows(frame)
        places = sorted(reasons)
        rejected = tuple(Rejected(*locate(row), reasons[row]) for row in places)
        return ParsedRows(frame.filter(usable), rejected, places)


def reason(role: str, value: object, dates: bool | None = None) -> str:
    """Why `value` is invalid in a role; timestamps must be `dates` or numbers."""
    empty = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
    if role in ("user", "item"):
        return (
            f"no {role} id"
            if empty
            else f"{role} id {_REPR.repr(value)} is neither an integer nor a text"
        )
    if role == "target":
        return (
            "no target" if value is None else f"target {_REPR.repr(value)} is not a finite number"
        )
    if empty:
        return "no timestamp"
    expected = {None: "neither a number nor a date", True: "not a date", False: "not a number"}
    return f"timestamp {_REPR.repr(value)} is {expected[dates]}"


def check_types(name: str, schema: Mapping[str, pl.DataType]) -> None:
    """Raise an error if a column, named as in `Events`, has an unsupported dtype."""
    for column, dtype in schema.items():
        if column == "target":
            usable = dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null)
            role = "a number"
        elif column == "timestamp":
            usable = dtype.is_numeric() or dtype in (pl.Date, pl.Datetime, pl.String, pl.Null)
            role = "a number or a date"
        else:
            text = (pl.String, pl.Categorical, pl.Enum, pl.Null)
            usable = dtype.is_integer() or dtype.is_float() or dtype in text
            role = "an integer or a string"
        if not usable:
            raise CelrecError(f"{name}: column for {column!r} is {dtype}, not {role}; cast it")


def _ids(values: pl.Series) -> pl.Series:
    """Ids as Int64 or String, with null for missing and invalid ones."""
    dtype = values.dtype
    if dtype == pl.String:
        empty = values == ""
        return values.set(empty, None) if empty.any() else values
    if dtype.is_integer():
        integers = values.cast(pl.Int64, strict=False)
        return integers if integers.null_count() == values.null_count() else values.cast(pl.String)
    if dtype.is_float():  # integers with missing values
        whole = (values == values.floor()) & (values.abs() <= EXACT_FLOAT)
        return values.set(~whole.fill_null(False), None).cast(pl.Int64)
    return values.cast(pl.String)
