"""Rent the Runway: ratings of rented clothes, very few per customer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from celrec.data.datasets.dataset import Counts, Dataset, PublishedFile, Tables
from celrec.data.text_source import TextSource
from celrec.errors import CelrecError, first_line

_URL = "https://mcauleylab.ucsd.edu/public_datasets/data/renttherunway/"
_FILE = "renttherunway_final_data.json.gz"
_FIELDS = dict.fromkeys(("user_id", "item_id", "rating", "review_date", "category"), pl.String)


def _parse(files: Mapping[str, Path]) -> Tables:
    source = TextSource(files[_FILE])
    day = pl.col("review_date").str.to_date("%B %d, %Y")
    try:
        blocks = source.blocks(quoted=False)
        parts = [pl.read_ndjson(block.data, schema=_FIELDS) for block in blocks]
        if not parts:
            raise CelrecError(f"{source}: the file is empty")
        events = pl.concat(parts)
        ratings = events.select(
            user=pl.col("user_id").cast(pl.Int32),
            item=pl.col("item_id").cast(pl.Int32),
            rating=pl.col("rating").cast(pl.Float32, strict=False),
            timestamp=day.dt.epoch("s"),
        )
        items = events.select(item=pl.col("item_id").cast(pl.Int32), category="category")
    except pl.exceptions.PolarsError as error:
        raise CelrecError(
            f"{source}: not the published JSON lines ({first_line(error)})"
        ) from error
    return Tables(ratings, items.unique("item", keep="first", maintain_order=True))


RENT_THE_RUNWAY = Dataset(
    name="rent-the-runway",
    about="Rent the Runway: clothes rated 2, 4 … 10, 2010–18; categories. "
    "82 unrated reviews are left out",
    counts=Counts(192_462, 105_508, 5_850),
    # No checksum is published; the counts and gzip's own checksum are verified instead.
    files=(PublishedFile(_URL + _FILE, None),),
    parse=_parse,
    aliases=("renttherunway",),
    used=pl.col("rating").is_not_null(),
)
