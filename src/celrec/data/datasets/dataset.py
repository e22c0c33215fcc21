"""What celrec knows of a public data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from celrec.data.carrier import Carrier


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a data set, to tell a complete copy from another one."""

    rows: int
    users: int
    items: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows, {self.users:,} users, {self.items:,} items"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file on the publisher's server."""

    url: str
    checksum: str | None
    """`algorithm:digest`; None where none is known, and the counts must do."""
    required: bool = True

    @property
    def name(self) -> str:
        """The file's name, also in a folder of local copies."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Tables:
    """A data set with original ids.

    `ratings` has the columns user, item, rating and perhaps timestamp; `items`
    and `users` have item or user and features.
    """

    ratings: pl.DataFrame
    items: pl.DataFrame | None = None
    users: pl.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A public data set: where it is published, how large it is and how it is parsed."""

    name: str
    about: str
    counts: Counts
    """Of the rows that are used."""
    files: tuple[PublishedFile, ...]
    parse: Callable[[Mapping[str, Path]], Tables]
    """From the published files by name to tables; optional files may be absent."""
    carrier: Carrier | None = None
    parse_carrier: Callable[[Path], Tables] | None = None
    aliases: tuple[str, ...] = ()
    """Other names for its folder among local copies."""
    used: pl.Expr | None = None
    """Which ratings are used; all if None."""
