"""A batch of events, and where to go on after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from celrec.data.streams.rejected import Rejected

Offset: TypeAlias = dict[str, Any]
"""Where to go on in a source; can be written as JSON. What is in it is the source's business."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some consecutive events of a source.

    >>> Events(no_events(), {"row": 0}).frame.columns
    ['user', 'item', 'target']
    """

    frame: pl.DataFrame
    """The columns user, item (original ids: Int64 or String), target (Float32, finite),
    timestamp (Int64) where the events have one, and further ids as `columns.further` says,
    null where there is none."""
    offset: Offset
    """Where the source goes on after these events."""
    rejected: tuple[Rejected, ...] = ()
    """Events that were malformed, and are not in the frame."""


def no_events() -> pl.DataFrame:
    """A frame without rows."""
    return pl.DataFrame(schema={"user": pl.String, "item": pl.String, "target": pl.Float32})
