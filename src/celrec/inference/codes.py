"""Codes of ids: their clusters in each level, which are semantic ids of items."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.errors import CelrecError
from celrec.recommender.clusters import level_codes
from celrec.runs.run_folder import Run


def codes_of(run: Run, side: str) -> NDArray[np.int32] | None:
    """(ids, levels): the codes of all ids of a table; one level for clusters, None without them."""
    table = _table(run, side)
    codes = level_codes(run.model, side, len(table))
    if codes is None and "cluster" in table.columns:
        codes = table.get_column("cluster").to_numpy()[:, None]
    return None if codes is None else codes.astype(np.int32)


def count_levels(run: Run, side: str) -> int:
    """The number of levels of a table; 1 for other tables."""
    codes = codes_of(run, side)
    return 1 if codes is None else codes.shape[1]


def code_table(run: Run, side: str = "items") -> pl.DataFrame:
    """Each original id with its codes, in the columns id, code_1, code_2, ….

    A code is the cluster of an id in a level: similar ids have the same first code, still more
    similar ones also the second, and so on. `side` is items, users, or the name of a further id
    column.
    """
    codes = codes_of(run, side)
    if codes is None:
        others = [f"{name!r}" for name in run.tables if codes_of(run, name) is not None]
        remedy = f"take {' or '.join(others)}" if others else "train with embedding 'cel'"
        raise CelrecError(f"the {side} have no codes, since they do not share rows; {remedy}")
    columns = {f"code_{level}": column for level, column in enumerate(codes.T, 1)}
    return pl.DataFrame({"id": _table(run, side).get_column("id"), **columns})


def table_of_level(run: Run, side: str, level: int) -> pl.DataFrame:
    """A table of a run, in which `cluster` is the cluster in the given level, from 1.

    It has no such column if the table has no clusters.
    """
    table = _table(run, side)
    if level == 1:
        return table
    codes = codes_of(run, side)
    if codes is None or not 1 < level <= codes.shape[1]:
        most = count_levels(run, side)
        raise CelrecError(f"level must lie in 1 … {most} for the {side}, not {level}")
    return table.with_columns(cluster=pl.Series(codes[:, level - 1]))


def _table(run: Run, side: str) -> pl.DataFrame:
    if side not in run.tables:
        names = ", ".join(("items", "users", *run.columns))
        raise CelrecError(f"side must be one of {names}, not {side!r}")
    return run.tables[side]
