"""What is known of users and items besides their interactions."""

from __future__ import annotations

import numpy as np
import polars as pl

from celrec.data.id_map import IdMap
from celrec.errors import CelrecError


def align_features(table: pl.DataFrame, ids: IdMap, id_column: str) -> pl.DataFrame:
    """`table` without its id column, with row j for dense id j and nulls for ids it lacks.

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
