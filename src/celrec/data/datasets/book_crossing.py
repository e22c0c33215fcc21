"""Book-Crossing: ratings of books from a community of readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from celrec.data.datasets.dataset import Counts, Dataset, PublishedFile, Tables, Types, parse_text

_FILE = "BX-CSV-Dump.zip"
# Every field is quoted, and quotes inside fields are not doubled.
_SEPARATOR = '";"'


def _parse(files: Mapping[str, Path]) -> Tables:
    path = files[_FILE]
    return Tables(_ratings(path), _books(path), _users(path))


def _ratings(path: Path) -> pl.DataFrame:
    # Some ISBNs contain escaped quotes; as ids they are not changed.
    ratings = _fields(path, "BX-Book-Ratings.csv", "user item rating")
    return ratings.with_columns(pl.col("user").cast(pl.Int32), pl.col("rating").cast(pl.Float32))


def _books(path: Path) -> pl.DataFrame:
    books = _fields(path, "BX-Books.csv", "item title author year publisher small medium large")
    # A handful of titles end in an escaped quote, which hides the separator before the author.
    hidden = pl.col("large").is_null()
    parts = pl.col("title").str.splitn('\\";', 2)
    return books.select(
        "item",
        title=_unescaped(pl.when(hidden).then(parts.struct[0]).otherwise("title")),
        author=_unescaped(
            pl.when(hidden).then(parts.struct[1].str.strip_suffix('"')).otherwise("author")
        ),
        year=pl.when(hidden).then("author").otherwise("year").cast(pl.Int32, strict=False),
        publisher=_unescaped(pl.when(hidden).then("year").otherwise("publisher")),
    ).unique("item", keep="first", maintain_order=True)


def _users(path: Path) -> pl.DataFrame:
    whole = "\x1e"  # does not occur, so the line is one field
    types: Types = {"line": pl.String}
    lines = parse_text(
        path, "BX-Users.csv", types, separator=whole, encoding="latin-1", has_header=True
    )
    # An unknown age is NULL without quotes.
    pattern = r'^"(?<user>\d+)";"(?<location>.*)";(?:"(?<age>\d+)"|NULL)\r?$'
    users = lines.select(pl.col("line").str.extract_groups(pattern)).unnest("line")
    return users.with_columns(pl.col("user", "age").cast(pl.Int32), _unescaped(pl.col("location")))


def _fields(path: Path, member: str, names: str) -> pl.DataFrame:
    types: Types = dict.fromkeys(names.split(), pl.String)
    table = parse_text(
        path, member, types, separator=_SEPARATOR, encoding="latin-1", has_header=True
    )
    first, *_, last = table.columns
    ending = pl.col(last).str.strip_suffix("\r").str.strip_suffix('"')
    return table.with_columns(pl.col(first).str.strip_prefix('"'), ending)


def _unescaped(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all('\\"', '"', literal=True)


BOOK_CROSSING = Dataset(
    name="book-crossing",
    about="Book-Crossing: books rated 1–10, 2004, no timestamps; titles, authors. "
    "716,109 implicit events (rating 0) are left out",
    counts=Counts(433_671, 77_805, 185_973),
    files=(
        PublishedFile(
            "http://www2.informatik.uni-freiburg.de/~cziegler/BX/" + _FILE,
            # The only digest of the archive that has been published.
            "md5:37d647ee9e18ba134ea6d78ee4fe5292",
        ),
    ),
    parse=_parse,
    used=pl.col("rating") > 0,
)
