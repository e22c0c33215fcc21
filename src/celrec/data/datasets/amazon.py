"""Amazon reviews, the 2014 edition: ratings only, with product metadata."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from celrec.data.datasets.dataset import Counts, Dataset, PublishedFile, Tables, Types, parse_text
from celrec.data.text_source import TextSource
from celrec.errors import CelrecError

_URL = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"
_RATINGS: Types = {
    "user": pl.String,
    "item": pl.String,
    "rating": pl.Float32,
    "timestamp": pl.Int64,
}
_PRODUCTS = {"item": pl.String, "title": pl.String, "brand": pl.String, "category": pl.String}


def _parse(files: Mapping[str, Path]) -> Tables:
    by_kind = {name.partition("_")[0]: path for name, path in files.items()}
    ratings = parse_text(by_kind["ratings"], None, _RATINGS, separator=",")
    return Tables(ratings, _products(by_kind["meta"]) if "meta" in by_kind else None)


def _products(path: Path) -> pl.DataFrame:
    return pl.DataFrame(list(_records(path)), schema=_PRODUCTS, orient="row")


def _records(path: Path) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    # The lines are Python literals rather than JSON, so they are read one by one, once.
    source = TextSource(path)
    for block in source.blocks(quoted=False):
        for number, line in enumerate(block.data.rstrip(b"\n").split(b"\n")):
            try:
                product = ast.literal_eval(line.decode())
                paths = product.get("categories") or [[]]
                category = paths[-1][-1] if paths[-1] else None
                yield product["asin"], product.get("title"), product.get("brand"), category
            except (ValueError, SyntaxError, KeyError, AttributeError, TypeError) as error:
                where = source.line_at(block.start) + number
                raise CelrecError(f"{source}, line {where}: not a product ({error})") from error


def _dataset(name: str, about: str, part: str, counts: Counts, checksum: str) -> Dataset:
    return Dataset(
        name=name,
        about=about,
        counts=counts,
        files=(
            PublishedFile(f"{_URL}ratings_{part}.csv", checksum),
            # No checksum of the metadata is published; gzip's own detects damaged files.
            PublishedFile(f"{_URL}meta_{part}.json.gz", None, required=False),
        ),
        parse=_parse,
    )


AMAZON = (
    _dataset(
        "amazon-video-games",
        "Amazon Video Games (2014): product ratings 1–5; titles, brands, categories",
        "Video_Games",
        Counts(1_324_753, 826_767, 50_210),
        "sha256:f0ca171050c2e0f208d47f5267992476b21ab68a01439c21c8be1a4432982cfa",
    ),
    _dataset(
        "amazon-electronics",
        "Amazon Electronics (2014): product ratings 1–5; titles, brands, categories",
        "Electronics",
        Counts(7_824_482, 4_201_696, 476_002),
        "sha256:a8e5b66b7f5371d1659ff88ae4acec91604125d6850f4f7e1c418120f2f9c16c",
    ),
)
