"""An event that could not be used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejected:
    """An event that was set aside: where it stood, what was written there, and what is wrong.

    >>> Rejected("events.csv, line 7", "u1,,5", "no item id").reason
    'no item id'
    """

    place: str
    raw: str
    reason: str
