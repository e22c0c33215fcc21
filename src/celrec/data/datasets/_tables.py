"""Parsing published text files into tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from celrec.data.delimited import Delimited
from celrec.data.text_source import TextSource
from celrec.errors import CelrecError

Types = Mapping[str, type[pl.DataType]]


def parse_text(
    path: Path,
    member: str | None,
    types: Types,
    *,
    separator: str,
    encoding: str = "utf-8",
    has_header: bool = False,
    quoted: bool = False,
) -> pl.DataFrame:
    """A delimited text file, or `member` of an archive, whose columns are exactly `types`."""
    source = TextSource(path, member)
    table = Delimited(source, separator, tuple(types), has_header, quoted, encoding)
    frames = [frame for _, frame, _ in table.frames(types)]
    if not frames:
        raise CelrecError(f"{source}: the file is empty")
    return pl.concat(frames)


def with_year(items: pl.DataFrame) -> pl.DataFrame:
    """`items` with the year that their titles end in."""
    year = pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int16)
    return items.with_columns(year=year)


def split_names(column: str, separator: str) -> pl.Expr:
    """Lists of names from a text such as `Drama|War`; no name is an empty list."""
    names = pl.col(column).fill_null("").str.split(separator)
    return names.list.eval(pl.element().filter(~pl.element().is_in(["", "(no genres listed)"])))
