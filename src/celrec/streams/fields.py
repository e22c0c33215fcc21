"""Parsing the fields of delimited records and of JSON objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from celrec.data.delimited import Delimited
from celrec.runtime.jit import Bytes, Flags, Ints, compiled
from celrec.streams.records import Records

_QUOTE = ord('"')
_UNIT, _RECORD = "\x1f", "\x1e"  # control characters that do not occur in texts
_UNIT_CODE, _RECORD_CODE = ord(_UNIT), ord(_RECORD)
_GOOD, _WRONG_COUNT, _LEFT_OPEN, _AFTER_QUOTE, _CONTROL = range(5)


def fields(
    records: Records, table: Delimited, wanted: Sequence[str]
) -> tuple[pl.DataFrame, dict[int, str]]:
    """The columns `wanted` as text, one row per record, and the problems of invalid rows.

    Invalid rows have nulls only.
    """
    selected = np.array([name in wanted for name in table.names])
    span = int(records.ends[-1] - records.starts[0])
    out = np.empty(span + len(records) * len(wanted), np.uint8)
    state = np.empty(len(records), np.int64)
    counts = np.empty(len(records), np.int64)
    length = _extract(
        np.frombuffer(records.data, np.uint8),
        records.starts,
        records.ends,
        np.frombuffer(table.separator.encode(), np.uint8),
        table.quoted,
        selected,
        out,
        state,
        counts,
    )
    problems = {
        row: _explain(int(state[row]), int(counts[row]), len(table.names))
        for row in np.flatnonzero(state).tolist()
    }
    text = out[:length].tobytes()
    try:
        text.decode()
    except UnicodeDecodeError:
        rows = text.split(_RECORD.encode())[:-1]
        bad = [row for row, line in enumerate(rows) if not _is_text(line)]
        problems |= dict.fromkeys(bad, "not UTF-8 text")
        for row in bad:
            rows[row] = _UNIT.encode() * (len(wanted) - 1)
        text = b"".join(row + _RECORD.encode() for row in rows)
    names = [name for name in table.names if name in wanted]
    frame = pl.read_csv(
        text,
        has_header=False,
        schema=dict.fromkeys(names, pl.String),
        separator=_UNIT,
        eol_char=_RECORD,
        quote_char=None,
    )
    return frame, problems


def _explain(state: int, count: int, expected: int) -> str:
    if state == _WRONG_COUNT:
        return f"{count} field{'s' if count > 1 else ''} where {expected} are expected"
    if state == _LEFT_OPEN:
        return "a double quote is left open"
    if state == _AFTER_QUOTE:
        return "text after a closing double quote"
    return "a control character (1e or 1f) in a field"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@compiled
def _extract(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    separator: Bytes,
    quoted: bool,
    selected: Flags,
    out: Bytes,
    state: Ints,
    counts: Ints,
) -> int:
    """Write the `selected` fields without quotes to `out`; return the bytes written."""
    wanted = selected.sum()
    length = 0
    for row in range(len(starts)):
        begin = length
        place, end = starts[row], ends[row]
        field, problem = 0, _GOOD
        while True:
            copying = field < len(selected) and selected[field]
            inside = quoted and place < end and data[place] == _QUOTE
            closed = not inside
            if inside:
                place += 1
            while place < end:
                if inside and not closed:
                    if data[place] == _QUOTE:
                        if place + 1 < end and data[place + 1] == _QUOTE:
                            place += 1  # a doubled quote
                        else:
                            closed = True
                            place += 1
                            continue
                else:
                    apart = place + len(separator) <= end
                    for offset in range(len(separator)):
                        apart = apart and data[place + offset] == separator[offset]
                    if apart:
                        break
                    if inside:
                        problem = _AFTER_QUOTE
                if copying:
                    if data[place] == _UNIT_CODE or data[place] == _RECORD_CODE:
                        problem = _CONTROL
                    out[length] = data[place]
                    length += 1
                place += 1
            if not closed:
                problem = _LEFT_OPEN
            if copying:
                out[length] = _UNIT_CODE
                length += 1
            field += 1
            if place >= end:
                break
            place += len(separator)
            if place >= end:  # a separator at the end: one more, empty field
                if field < len(selected) and selected[field]:
                    out[length] = _UNIT_CODE
                    length += 1
                field += 1
                break
        if field != len(selected) and problem == _GOOD:
            problem = _WRONG_COUNT
        if problem != _GOOD:
            length = begin
            for _ in range(wanted):
                out[length] = _UNIT_CODE
                length += 1
        out[length - 1] = _RECORD_CODE
        state[row], counts[row] = problem, field
    return length


_MARK = "\x1e celrec"  # between two values; a value that contains it is parsed more slowly
_BETWEEN = b"," + json.dumps(_MARK).encode() + b","


def json_objects(values: Sequence[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Parse JSON objects; invalid texts give an empty object and a problem by row.

    >>> json_objects([b'{"user": 1}', b"{", b"7"])
    ([{'user': 1}, {}, {}], {1: 'not JSON', 2: 'JSON, but not an object'})
    """
    try:  # one call per batch is several times faster than one per value
        parsed = json.loads((b"[" + _BETWEEN.join(values) + b"]").decode())
    except (ValueError, RecursionError):
        return _one_by_one(values)
    # If every second value is a mark, each other value is from one text.
    regular = len(parsed) == 2 * len(values) - 1 and parsed[1::2].count(_MARK) == len(values) - 1
    objects = parsed[::2]
    if not regular or set(map(type, objects)) != {dict}:
        return _one_by_one(values)
    return objects, {}


def _one_by_one(values: Sequence[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    objects: list[dict[str, Any]] = [{}] * len(values)
    problems = {}
    for number, value in enumerate(values):
        try:
            parsed = json.loads(value.decode())
        except UnicodeDecodeError:
            problems[number] = "not UTF-8 text"
        except (ValueError, RecursionError):
            problems[number] = "not JSON"
        else:
            if isinstance(parsed, dict):
                objects[number] = parsed
            else:
                problems[number] = "JSON, but not an object"
    return objects, problems
