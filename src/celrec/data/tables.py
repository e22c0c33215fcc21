"""Conversion between polars, pandas and Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

import polars as pl

from celrec.errors import CelrecError, first_line

Table: TypeAlias = Any
"""A polars DataFrame or LazyFrame, a pandas DataFrame, an Arrow table, or a dict of columns."""


class TableKind(Enum):
    """The library of a table, so that results can be tables of the same library.

    >>> frame = pl.DataFrame({"user": [1, 2]})
    >>> TableKind.of(frame.lazy()).made(frame).collect().equals(frame)
    True
    """

    POLARS = "polars"
    LAZY = "lazy"
    PANDAS = "pandas"
    ARROW = "arrow"

    @classmethod
    def of(cls, source: object) -> TableKind:
        """The kind of a table; POLARS for any other object."""
        if isinstance(source, pl.LazyFrame):
            return cls.LAZY
        library = type(source).__module__.partition(".")[0]
        return {"pandas": cls.PANDAS, "pyarrow": cls.ARROW}.get(library, cls.POLARS)

    def made(self, frame: pl.DataFrame) -> Table:
        """Convert a polars frame to this kind."""
        try:
            if self is TableKind.PANDAS:
                return frame.to_pandas()
            if self is TableKind.ARROW:
                return frame.to_arrow()
        except ImportError as error:
            raise CelrecError("pyarrow is needed for this table; install it") from error
        return frame.lazy() if self is TableKind.LAZY else frame


def as_polars(table: Table, argument: str) -> pl.DataFrame | pl.LazyFrame:
    """Convert a table to polars; `argument` is its name in error messages."""
    if isinstance(table, pl.DataFrame | pl.LazyFrame):
        return table
    try:
        if type(table).__module__.partition(".")[0] == "pandas":
            frame = pl.from_pandas(table)
            if isinstance(frame, pl.DataFrame):
                return frame
        elif isinstance(table, Mapping) or hasattr(table, "__arrow_c_stream__"):
            return pl.DataFrame(table)
    except ImportError as error:
        raise CelrecError(f"{argument}: pyarrow is needed to read this pandas table") from error
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise CelrecError(
            f"{argument}: cannot turn this table into columns ({first_line(error)})"
        ) from error
    raise CelrecError(
        f"{argument}: expected a path or a polars, pandas or Arrow table, "
        f"got {type(table).__name__}"
    )


def with_column(table: Table, name: str, values: pl.Series) -> Table:
    """The table with a column added or replaced, in the same kind."""
    if isinstance(table, pl.DataFrame | pl.LazyFrame):
        return table.with_columns(values.alias(name))
    if isinstance(table, Mapping):
        return {**table, name: values.to_list()}
    kind = TableKind.of(table)
    if kind is TableKind.PANDAS:  # keeps the index
        return table.assign(**{name: values.to_numpy()})
    if kind is TableKind.ARROW:
        column = values.to_arrow()
        if name in table.column_names:
            return table.set_column(table.column_names.index(name), name, column)
        return table.append_column(name, column)
    return as_polars(table, "table").lazy().collect().with_columns(values.alias(name))
