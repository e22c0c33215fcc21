"""Book-Crossing: ratings of books from a community of readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from celrec.data.datasets._tables import Types, parse_text
from celrec.data.datasets.dataset import Counts, Dataset, PublishedFile, Tables

_FILE = "BX-CSV-Dump.zip"
# Every field is quoted, and quotes inside fields are not doubled: the separator is this.
_SEPARATOR = '";"'


def _parse(files: Mapping[str, Path]) -> Tables:
    path = files[_FILE]
    ratings = _texts(path, "BX-Book-Ratings.csv", "user item rating")
    books = _texts(path, "BX-Books.csv", "item title author year publisher small medium large")
    # A handful of titles end in an escaped quote, which hides the separator before the author.
    hidden = pl.col("large").is_null()
    parts = pl.col("title").str.splitn('\\";', 2)
    shifted = {"year": "author", "publisher": "year"}
    books = books.select(
        "item",
        title=pl.when(hidden).then(parts.struct[0]).otherwise("title"),
        author=pl.when(hidden).then(parts.struct[1].str.strip_chars('"')).otherwise("author"),
        **{now: pl.when(hidden).then(was).otherwise(now) for now, was in shifted.items()},
    ).with_columns(pl.col("year").cast(pl.Int32, strict=False))
    users = _texts(path, "BX-Users.csv", "user location age").with_columns(
        pl.col("user").cast(pl.Int32), pl.col("age").cast(pl.Int32, strict=False)
    )
    return Tables(
        ratings.with_columns(pl.col("user").cast(pl.Int32), pl.col("rating").cast(pl.Float32)),
        books.unique("item", keep="first", maintain_order=True),
        users,
    )


def _texts(path: Path, member: str, names: str) -> pl.DataFrame:
    types: Types = dict.fromkeys(names.split(), pl.String)
    table = parse_text(
        path, member, types, separator=_SEPARATOR, encoding="latin-1", has_header=True
    )
    return table.with_columns(pl.all().str.strip_chars_end("\r").str.strip_chars('"'))


BOOK_CROSSING = Dataset(
    name="book-crossing",
    about="Book-Crossing: books rated 1–10, 2004, no timestamps; titles, authors. "
    "716,109 implicit events (rating 0) are left out",
    counts=Counts(433_671, 77_805, 185_973),
    files=(
        PublishedFile(
            "http://www2.informatik.uni-freiburg.de/~cziegler/BX/" + _FILE,
            # The one digest of the archive that others have published.
            "md5:37d647ee9e18ba134ea6d78ee4fe5292",
        ),
    ),
    parse=_parse,
    used=pl.col("rating") > 0,
)
