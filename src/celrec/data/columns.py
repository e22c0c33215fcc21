"""Tables of polars, pandas or Arrow, and the roles of their columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import polars as pl

from celrec.errors import CelrecError, first_line

# Names in order of preference, in lower case without punctuation.
_COMMON_NAMES = {
    "user": "user userid uid customer customerid reviewer reviewerid member memberid visitor "
    "visitorid account accountid session sessionid",
    "item": "item itemid iid movie movieid product productid asin isbn book bookid article "
    "articleid song songid track trackid business businessid content contentid",
    "target": "target rating label overall score stars star bookrating click clicked conversion "
    "converted purchase purchased value",
    "timestamp": "timestamp time ts unixreviewtime datetime date eventtime createdat reviewdate "
    "reviewtime",
}
_ROLES = ("user", "item", "target", "timestamp")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a log by role; a column that is None is guessed.

    Guessing ignores case, punctuation and RecBole's `:type` suffixes. The columns of a log without
    a header are named "1", "2", … and are user, item, target and, if there are four or more,
    timestamp. A log without a target is implicit feedback; `need_target` makes that an error.

    >>> Columns().resolve(["reviewerID", "asin", "overall", "unixReviewTime"])
    Columns(user='reviewerID', item='asin', target='overall', timestamp='unixReviewTime', more=())
    >>> Columns(item="shop").resolve(["user_id:token", "shop", "label"]).roles()
    {'user': 'user_id:token', 'item': 'shop', 'target': 'label'}
    """

    user: str | None = None
    item: str | None = None
    target: str | None = None
    timestamp: str | None = None
    more: tuple[str, ...] = ()
    """Further columns of ids."""
    need_target: bool = field(default=True, repr=False)

    def resolve(self, names: Sequence[str], source: str = "table") -> Columns:
        """The columns with every role filled from `names`, except for missing optional ones."""
        positional = list(names) == [str(number + 1) for number in range(len(names))]
        found: dict[str, str | None] = {}
        for position, role in enumerate(_ROLES):
            given = getattr(self, role)
            if given is not None:
                if given not in names:
                    raise CelrecError(
                        f"{source}: no column {given!r} for the {role}; "
                        f"the columns are {_listed(names)}"
                    )
                found[role] = given
            elif positional:
                found[role] = names[position] if position < len(names) else None
            else:
                found[role] = _guess(role, names)
            needed = role != "timestamp" and (role != "target" or self.need_target)
            if found[role] is None and needed:
                raise CelrecError(
                    f"{source}: no {role} column among {_listed(names)}; "
                    f"name it with {role}=… (--{role}-column)"
                )
        for name in self.more:
            if name not in names:
                raise CelrecError(f"{source}: no column {name!r}; the columns are {_listed(names)}")
        resolved = Columns(**found, more=self.more, need_target=self.need_target)
        roles = resolved.roles()
        if len({*roles.values(), *self.more}) < len(roles) + len(self.more):
            roles |= {f"ids {number}": name for number, name in enumerate(self.more, 1)}
            raise CelrecError(f"{source}: one column is given for two roles: {roles}")
        return resolved

    def roles(self) -> dict[str, str]:
        """Column names by role, for the roles that have a column."""
        return {role: name for role in _ROLES if (name := getattr(self, role)) is not None}

    def sources(self) -> dict[str, str]:
        """Column names by role or, for further columns, by the name that readers give them."""
        return {**self.roles(), **{further(name): name for name in self.more}}


def further(name: str) -> str:
    """The readers' name of a further column, which differs from every role."""
    return f"ids:{name}"


def _guess(role: str, names: Sequence[str]) -> str | None:
    plain = {re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower()): name for name in reversed(names)}
    return next((plain[common] for common in _COMMON_NAMES[role].split() if common in plain), None)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f", … ({len(names)} in all)" if len(names) > 12 else "")


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
