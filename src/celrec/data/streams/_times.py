"""Timestamps as integers."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data._raw_log import time_as_integer

_DAYS = ("%Y-%m-%d", "%d-%m-%Y")
_TIMES = ("T%H:%M:%S%.f%#z", "T%H:%M:%S%.f", "", "T%H:%M")
_SLASHED = r"^(\d+)/(\d+)/(\d+)"


def as_times(
    values: pl.Series, usable: NDArray[np.bool_], dates: bool | None
) -> tuple[pl.Series, bool | None]:
    """Times as Int64, null where there is none, and whether they are written as dates.

    Numbers are taken as they are, and dates become microseconds since 1970.
    Both in one source would be two clocks: the first of the `usable` rows that
    has a time decides, unless it is known already (`dates`).

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
    """Each text by the first format that fits it: a wrong one says nothing about the others."""
    plain = texts.str.replace(_SLASHED, "$1-$2-$3").str.replace(" ", "T", literal=True)
    times = _nothing(texts)
    for day, time in itertools.product(_DAYS, _TIMES):
        if times.null_count() == texts.null_count():
            break
        zone = "UTC" if time.endswith("z") else None
        parsed = plain.str.to_datetime(day + time, time_unit="us", time_zone=zone, strict=False)
        times = times.fill_null(parsed.dt.epoch("us"))
    return times
