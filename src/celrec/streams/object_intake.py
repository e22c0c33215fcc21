"""Validation of events that are objects with named values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import methodcaller
from typing import Any

import polars as pl

from celrec.data.columns import Columns, further
from celrec.errors import CelrecError
from celrec.streams.events import Offset, ParsedRows, Rejected, no_events
from celrec.streams.intake import EXACT_FLOAT, Intake, reason

_ROLES = ("user", "item", "target", "timestamp")


class ObjectIntake:
    """Converts objects to columns, and rejects invalid ones.

    The keys of the roles are guessed from the first valid event. They are part of the offset
    (`state`), since a restarted run begins with another event.

    >>> intake = ObjectIntake(Columns(), {})
    >>> events = [{"uid": 7, "asin": "x", "stars": 4}, {"uid": 8, "asin": "x"}]
    >>> parsed = intake.take(events, {}, lambda row: (f"entry {row}", ""))
    >>> parsed.frame.rows(), parsed.rejected[0].reason, intake.state()["columns"]["item"]
    ([(7, 'x', 4.0)], "no field 'stars' (target)", 'asin')
    """

    def __init__(self, roles: Columns, after: Offset) -> None:
        known = after.get("columns")
        self._roles = roles
        if known:  # names from the caller take precedence over guessed ones
            names = {role: getattr(roles, role) or known.get(role) for role in _ROLES}
            self._columns: Columns | None = Columns(**names, more=roles.more)
        else:
            self._columns = None
        self._intake = Intake(after.get("dates"))

    def state(self) -> Offset:
        """The guessed roles, as part of the offset."""
        columns = self._columns.roles() if self._columns else None
        return {"columns": columns, "dates": self._intake.dates}

    def take(
        self,
        events: Sequence[dict[str, Any]],
        problems: dict[int, str],
        locate: Callable[[int], tuple[str, str]],
    ) -> ParsedRows:
        """Convert events, and reject invalid ones; arguments as for `Intake.take`."""
        problems = dict(problems)
        if self._columns is None:
            self._columns = self._guess(events, problems)
        if self._columns is None:
            rejected = [Rejected(*locate(row), reason) for row, reason in sorted(problems.items())]
            return ParsedRows(no_events(), tuple(rejected), sorted(problems))
        raw = self._raw(events, self._columns, problems)
        return self._intake.take(raw, problems, locate)

    def take_all(
        self,
        batches: Iterable[tuple[Sequence[dict[str, Any]], dict[int, str]]],
        locate: Callable[[int], tuple[str, str]],
    ) -> Iterator[ParsedRows]:
        """Convert batches of equal length (except the last) as `take` does.

        Batches with the same dtypes are converted together, which is faster, as soon as the roles
        are settled. `locate` is called with row numbers that run through all batches.
        """
        rows = 0
        waiting: list[tuple[pl.DataFrame, dict[int, str]]] = []
        for events, wrong in batches:
            if self._columns is None or not self._settled(self._columns):
                yield self.take(events, wrong, _after(rows, locate))
                rows += len(events)
            else:
                problems = dict(wrong)
                waiting.append((self._raw(events, self._columns, problems), problems))
        for _, group in groupby(waiting, lambda batch: batch[0].schema):
            raws, several = zip(*group, strict=True)
            size = len(raws[0])
            together = {
                place * size + row: problem
                for place, problems in enumerate(several)
                for row, problem in problems.items()
            }
            parsed = self._intake.take(pl.concat(raws), together, _after(rows, locate))
            rows += len(parsed)
            yield from parsed.batches(size)

    def _settled(self, columns: Columns) -> bool:
        return self._intake.dates is not None or columns.timestamp is None

    def _guess(self, events: Sequence[dict[str, Any]], problems: dict[int, str]) -> Columns | None:
        """The roles from the first valid event; earlier ones are added to `problems`."""
        for row, event in enumerate(events):
            if row in problems:
                continue
            names = [name for name, value in event.items() if value is not None]
            names += [name for name in self._roles.more if name not in names]
            try:
                columns = self._roles.resolve(names, "event")
            except CelrecError as error:
                problems[row] = str(error)
                continue
            trouble: dict[int, str] = {}
            raw = self._raw([event], columns, trouble)
            parsed = Intake().take(raw, trouble, lambda _: ("", ""))
            if not parsed.rejected:
                return columns
            problems[row] = parsed.rejected[0].reason
        return None

    def _raw(
        self, events: Sequence[dict[str, Any]], columns: Columns, problems: dict[int, str]
    ) -> pl.DataFrame:
        raw = {}
        for role, key in columns.sources().items():
            values = list(map(methodcaller("get", key), events))
            if None in values and not role.startswith(further("")):
                for row, value in enumerate(values):
                    if value is None:
                        problems.setdefault(row, f"no field {key!r} ({role})")
            raw[role] = _series(values, role, problems)
        return pl.DataFrame(raw)


def _after(rows: int, locate: Callable[[int], tuple[str, str]]) -> Callable[[int], tuple[str, str]]:
    return lambda row: locate(rows + row)


def _series(values: list[Any], role: str, problems: dict[int, str]) -> pl.Series:
    """The values of a role as integers, floats or texts."""
    kinds = set(map(type, values)) - {type(None)}
    try:
        if kinds == {int}:
            return pl.Series(values, dtype=pl.Int64)
        if kinds == {str}:
            return pl.Series(values, dtype=pl.String)
        if kinds == {float} or (role == "target" and kinds <= {int, float, bool}):
            return pl.Series(values, dtype=pl.Float64, strict=False)
    except (TypeError, OverflowError, UnicodeEncodeError):
        pass  # integers of more than 64 bits, or half a surrogate pair
    texts: list[str | None] = [None] * len(values)
    for row, value in enumerate(values):
        try:
            texts[row] = _text(value, role)
        except ValueError:
            if role in _ROLES:
                problems.setdefault(row, reason(role, value))
    return pl.Series(texts, dtype=pl.String)


def _text(value: Any, role: str) -> str | None:
    """A value as a text that `Intake` parses to the same value; ValueError if it is invalid."""
    if value is None:
        return None
    number = isinstance(value, bool | float)
    if number and role == "target":
        value = float(value)
    elif number and role != "timestamp":
        if isinstance(value, bool) or not value.is_integer() or abs(value) > EXACT_FLOAT:
            raise ValueError
        value = int(value)
    elif isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    text = str(value)
    text.encode()  # half a surrogate pair raises a UnicodeEncodeError, a ValueError
    return text
