"""Features of users and items: encoding of categories, alignment with dense ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.id_map import UNSEEN, IdMap
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class EncodedFeature:
    """A categorical feature of all users or items: category numbers, padded with UNSEEN.

    >>> genres = pl.DataFrame({"genres": [["Drama", "War"], None, ["War"]]})
    >>> [feature] = EncodedFeature.all_of(genres)
    >>> feature.values.tolist(), feature.size
    ([[0, 1], [-1, -1], [1, -1]], 2)
    """

    name: str
    values: NDArray[np.int32]
    """(ids, largest number of values of an id)."""
    size: int
    """The number of categories."""

    @classmethod
    def all_of(cls, table: pl.DataFrame | None, most: int = 100) -> list[EncodedFeature]:
        """The columns of a feature table with at most `most` categories.

        Columns with more, such as titles, identify ids instead of grouping them, and their tables
        would be as large as those of the ids.
        """
        columns = [] if table is None else table.get_columns()
        encoded = (cls._of(column, most) for column in columns)
        return [feature for feature in encoded if feature is not None]

    @classmethod
    def _of(cls, column: pl.Series, most: int) -> EncodedFeature | None:
        lists = (
            column if isinstance(column.dtype, pl.List) else column.reshape((-1, 1)).arr.to_list()
        )
        frame = pl.DataFrame({"id": np.arange(len(column)), "value": lists})
        known = frame.explode("value").drop_nulls("value").unique(maintain_order=True)
        size = known.get_column("value").n_unique()
        if not 0 < size <= most:
            return None
        numbered = known.with_columns(
            number=pl.col("value").rank("dense") - 1,
            place=pl.int_range(pl.len()).over("id"),
        )
        width = int(numbered.get_column("place").max()) + 1  # type: ignore[arg-type]
        values = np.full((len(column), width), UNSEEN, np.int32)
        place = (numbered.get_column("id").to_numpy(), numbered.get_column("place").to_numpy())
        values[place] = numbered.get_column("number").to_numpy()
        return cls(column.name, values, size)


def align_features(table: pl.DataFrame, ids: IdMap, id_column: str) -> pl.DataFrame:
    """`table` without its id column; row j belongs to dense id j, with nulls for missing ids.

    >>> genres = pl.DataFrame({"item": [9, 7], "genre": ["Drama", "Comedy"]})
    >>> align_features(genres, IdMap([7, 8]), "item")["genre"].to_list()
    ['Comedy', None]
    """
    if id_column not in table.columns:
        raise CelrecError(
            f"features: no column {id_column!r} with the ids; the columns are {table.columns}"
        )
    dense = ids.encode(table.get_column(id_column))
    known = np.flatnonzero(dense >= 0)
    rows = np.full(len(ids), -1, np.int64)
    rows[dense[known]] = known
    if len(np.unique(dense[known])) < len(known):
        twice = dense[known][np.bincount(dense[known])[dense[known]] > 1][:1]
        raise CelrecError(
            f"features: id {ids.decode(twice)[0]!r} occurs twice; keep one row per id"
        )
    index = pl.Series(rows)
    index = index.set(index < 0, None)
    return table.drop(id_column).select(pl.all().gather(index))
