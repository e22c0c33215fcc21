"""What is wrong with a request, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celrec.serving.service.limits import LONGEST_ID

_ID = f"must be an integer of 64 bits, or a text of 1 to {LONGEST_ID} characters without NUL"
_LONGEST = 300  # characters: names of fields may be what a client has made up


def worded(errors: Sequence[Any]) -> str:
    """The first of the errors that pydantic has found, and how many more there are.

    What was sent is not repeated: it may be long, secret, or no text at all.

    >>> worded([{"loc": ("body", "k"), "msg": "Input should be a number", "type": "x"}])
    'k: Input should be a number'
    """
    by_place: dict[str, list[Any]] = {}
    for error in errors:
        by_place.setdefault(_place(error["loc"]), []).append(error)
    place, first = next(iter(by_place.items()))
    if first[0]["type"] == "json_invalid":
        return f"the body is no JSON text: {first[0].get('ctx', {}).get('error', 'it ends early')}"
    of_id = any(_is_branch(part) for part in first[0]["loc"])
    line = f"{place}: {_ID if of_id else first[0]['msg']}"
    more = len(by_place) - 1
    return line[:_LONGEST] + (f" (and {more} more)" if more else "")


def _place(where: Sequence[str | int]) -> str:
    parts = [str(part) for part in where[1:] if not _is_branch(part)]
    return ".".join(parts) or str(where[0])


def _is_branch(part: str | int) -> bool:
    """Whether it is one of the ways in which an id can be read, and not a name."""
    return part in ("constrained-int", "constrained-str", "int", "str")
