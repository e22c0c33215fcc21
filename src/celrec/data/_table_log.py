"""A log in a table in memory or in a parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import polars as pl

from celrec.data._raw_log import Batch, time_as_integer
from celrec.data.columns import Columns, further
from celrec.errors import CelrecError

_BATCH_ROWS = 1 << 18


class TableLog:
    """Reads a polars LazyFrame; only the columns that play a role are touched."""

    def __init__(self, frame: pl.LazyFrame, columns: Columns, name: str) -> None:
        try:
            schema = frame.collect_schema()
        except pl.exceptions.PolarsError as error:
            raise CelrecError(f"{name}: damaged parquet file ({_first_line(error)})") from error
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
        """See `RawLog`."""
        return int(self._raw.select(pl.len()).collect().item())

    def batches(self, drop_invalid: bool) -> Iterator[Batch]:
        """See `RawLog`."""
        del drop_invalid  # a table has no malformed rows, only nulls, which the reader judges
        start = 0
        try:
            for frame in self._frame.collect_batches(chunk_size=_BATCH_ROWS, maintain_order=True):
                yield Batch(frame, partial(self._locate, start))
                start += len(frame)
        except pl.exceptions.PolarsError as error:
            raise CelrecError(f"{self.name}: cannot read ({_first_line(error)})") from error

    def _locate(self, start: int, row: int) -> tuple[str, dict[str, str]]:
        values = self._raw.slice(start + row, 1).collect().row(0, named=True)
        return f"{self.name}, row {start + row + 1}", {k: str(v) for k, v in values.items()}

    def _target(self, column: str | None, schema: pl.Schema) -> pl.Expr:
        if column is None:  # it happened, and that is all
            return pl.lit(1, pl.Float32)
        dtype = schema[column]
        if dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null):
            return pl.col(column).cast(pl.Float32, strict=False)
        raise CelrecError(f"{self.name}: column {column!r} holds {dtype}, and a target is a number")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
