"""The entries of a Redis stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from celrec.data.streams._json_values import json_objects

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes] | None]
"""The id and the fields, None if the entry is no longer in the stream."""

Number: TypeAlias = tuple[int, int]
"""What ids are compared by: a time, and a number within it."""

_WHOLE = (b"json", b"event")  # names of a field that holds a JSON object


def number_of(entry_id: str | bytes) -> Number:
    """An id as what it is compared by.

    >>> number_of("1526919030474-55") < number_of("1526919030474-123")
    True
    """
    moment, _, sequence = (
        entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    ).partition("-")
    return int(moment), int(sequence or 0)


def entry_objects(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The event in each entry, and what is wrong with which of them; empty for these.

    >>> entry_objects([(b"1-0", {b"user": b"7"}), (b"2-0", {b"json": b'{"user": 7}'})])
    ([{'user': '7'}, {'user': 7}], {})
    """
    events: list[dict[str, Any]] = [{}] * len(entries)
    problems = {}
    packed = {}
    for row, (_, fields) in enumerate(entries):
        if not fields:
            problems[row] = "the entry was removed from the stream before it was read"
        elif len(fields) == 1 and (name := next(iter(fields))) in _WHOLE:
            packed[row] = fields[name]
        else:
            try:
                events[row] = {name.decode(): value.decode() for name, value in fields.items()}
            except UnicodeDecodeError:
                problems[row] = "not UTF-8 text"
    if packed:
        objects, wrong = json_objects(list(packed.values()))
        rows = list(packed)
        for row, event in zip(rows, objects, strict=True):
            events[row] = event
        problems |= {rows[number]: reason for number, reason in wrong.items()}
    return events, problems


def written(entry: Entry) -> str:
    """What is in an entry, for people."""
    fields = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in (entry[1] or {}).items()
    }
    return json.dumps(fields, ensure_ascii=False)
