"""What the sources need of a file, whatever its format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from celrec.data.streams.events import Offset
from celrec.data.streams.rejected import Rejected


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Some consecutive events of one file."""

    frame: pl.DataFrame
    rejected: tuple[Rejected, ...]
    place: Offset
    """Where the file goes on after them."""


class EventFile(Protocol):
    """A file of events."""

    def batches(self, size: int, after: Offset) -> Iterator[FileBatch]:
        """The events after a place, all of them if it is empty, `size` rows at a time.

        Where the batches end depends on the contents and `size` alone. Raises if
        the file is not the one that the place was in.
        """
