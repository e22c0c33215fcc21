"""Tables of events and ids, as callers give them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from celrec.data.columns import Columns, Table, TableKind, as_polars, with_column
from celrec.data.id_map import Ids
from celrec.data.interactions import Interactions
from celrec.data.reading import read
from celrec.errors import CelrecError

ROLES = ("user", "item", "target", "timestamp")
_PREDICTION = "prediction"


class Names(NamedTuple):
    """The names of columns by role; None for a name that is guessed."""

    user: str | None = None
    item: str | None = None
    target: str | None = None
    timestamp: str | None = None
    columns: tuple[str, ...] = ()
    """Further columns of ids."""

    @classmethod
    def of_reading(cls, reading: Mapping[str, Any]) -> Names:
        """The names that a run records, as `EventTable.reading` gives them."""
        roles = {role: reading.get(role) for role in ROLES}
        return cls(**roles, columns=tuple(reading.get("columns", ())))


class EventTable:
    """A table, a path or a log, with the names of its columns.

    >>> table = EventTable({"who": [1, 2], "item": ["a", "b"], "rating": [3, None]}, Names("who"))
    >>> table.pairs(read({"user": [2, 3], "item": ["a", "c"]})).user
    array([-1,  0], dtype=int32)
    """

    def __init__(
        self, source: str | Path | Table, names: Names, before: Names | None = None
    ) -> None:
        """Missing names are those of `before`, if the table has such columns."""
        self.source, self.kind = source, TableKind.of(source)
        self._path = source if isinstance(source, str | Path) else None
        self._frame: pl.DataFrame | None = None
        if not isinstance(source, str | Path | Interactions):
            self._frame = as_polars(source, "table").lazy().collect()
        self.names = names if before is None else self._filled(names, before)

    def interactions(
        self, *, need_target: bool = False, drop_invalid: bool = False
    ) -> Interactions:
        """All events, with an id map of their own."""
        if isinstance(self.source, Interactions):
            return self.source
        source = self._path if self._frame is None else self._frame
        return read(source, **self.reading, need_target=need_target, drop_invalid=drop_invalid)

    @property
    def reading(self) -> dict[str, Any]:
        """The names as keyword arguments of `celrec.read`, ready for JSON."""
        return {**self.names._asdict(), "columns": list(self.names.columns)}

    def pairs(self, known: Interactions) -> Interactions:
        """All events with the ids of `known`; targets are ignored."""
        frame, names = self._frame, self.names
        if frame is None:
            frame, names = self.interactions().to_frame(), Names(columns=self.names.columns)
        roles = Columns(*names[:4], more=names.columns, need_target=False).resolve(frame.columns)
        if roles.target is not None:
            frame, names = frame.drop(roles.target), names._replace(target=None)
        return read(frame, **EventTable(frame, names).reading, like=known)

    def predicted(self, predictions: pl.Series) -> Table:
        """The table with a column of predictions; a polars table for a path or a log."""
        if isinstance(self.source, str | Path | Interactions):
            return self.interactions().to_frame().with_columns(predictions.alias(_PREDICTION))
        if self.kind is TableKind.LAZY and self._frame is not None:
            return with_column(self._frame, _PREDICTION, predictions).lazy()
        return with_column(self.source, _PREDICTION, predictions)

    def __len__(self) -> int:
        """The number of rows of a table; 1 for a path, which is not read yet."""
        if isinstance(self.source, Interactions):
            return len(self.source)
        return 1 if self._frame is None else len(self._frame)

    def _filled(self, names: Names, before: Names) -> Names:
        def filled(role: str) -> str | None:
            now, then = getattr(names, role), getattr(before, role)
            there = self._frame is None or then in self._frame.columns
            return now or (then if there and not isinstance(self.source, Interactions) else None)

        roles = {role: filled(role) for role in ROLES}
        return Names(**roles, columns=names.columns or before.columns)


OneOrMany: TypeAlias = int | str | Ids
"""An id, or a sequence, an array or a column of ids."""


def requested_ids(argument: str, given: OneOrMany) -> pl.Series:
    """One id or many as a column.

    >>> requested_ids("users", "ann").to_list(), requested_ids("users", [7, 8]).to_list()
    (['ann'], [7, 8])
    """
    values: Any = [given] if isinstance(given, int | str | np.integer | np.str_) else given
    try:
        if type(values).__module__.partition(".")[0] == "pandas":
            ids: Any = pl.from_pandas(values)
        else:
            there = isinstance(values, pl.Series | pl.DataFrame | pl.LazyFrame)
            ids = values if there else pl.Series(values, strict=False)
    except ImportError as error:
        raise CelrecError(f"{argument}: pyarrow is needed to read this column") from error
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise CelrecError(
            f"{argument}: expected an id or a column of ids, got {type(given).__name__}"
        ) from error
    if not isinstance(ids, pl.Series):
        raise CelrecError(f"{argument}: expected a column of ids, got a table; name its column")
    if ids.null_count() or (ids.dtype.is_float() and ids.is_nan().any()):
        raise CelrecError(f"{argument}: some ids are missing; leave these out")
    return ids
