"""Long tables, written as they come about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from celrec.data.atomic import atomic_file
from celrec.errors import CelrecError

_SINKS: dict[str, Callable[[pl.LazyFrame, Path], object]] = {
    ".csv": pl.LazyFrame.sink_csv,
    ".parquet": pl.LazyFrame.sink_parquet,
}


def check_list_file(path: Path) -> None:
    """Complain about a name that `write_list_file` cannot take."""
    if path.suffix.lower() not in _SINKS:
        raise CelrecError(f"{path}: must end in {' or '.join(_SINKS)}; rename it")


def write_list_file(path: Path, frames: Iterator[pl.DataFrame]) -> int:
    """Write frames, one below the other, to a csv or parquet file, whole or not at all.

    The first tells the columns of all. Only few are in memory at a time. Gives the number of rows.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "lists.csv")
    >>> write_list_file(path, iter([pl.DataFrame({"n": [1, 2]}), pl.DataFrame({"n": [3]})]))
    3
    >>> pl.read_csv(path)["n"].to_list()
    [1, 2, 3]
    """
    check_list_file(path)
    first = next(frames)
    rows = 0

    def source(*_: object) -> Iterator[pl.DataFrame]:
        nonlocal rows
        rows = len(first)
        yield first
        for frame in frames:
            rows += len(frame)
            yield frame

    with atomic_file(path) as temporary:
        lazy = register_io_source(io_source=source, schema=first.schema)
        _SINKS[path.suffix.lower()](lazy, temporary)
    return rows
