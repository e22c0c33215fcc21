"""The clusters of a trained run as a table, with their most active members."""

from __future__ import annotations

import polars as pl

from celrec.errors import CelrecError
from celrec.runs.run_folder import Run


def cluster_summary(run: Run, side: str = "items", members: int = 5) -> pl.DataFrame:
    """One row per cluster of a run, sorted by mean target, highest first.

    Columns: cluster, members (their number), interactions, mean_target (null without
    interactions), and examples: the titles, or else the ids, of up to `members` of the most
    active members. `side` is items, users, or the name of a further id column.
    """
    sides = {"items": run.items, "users": run.users, **run.columns}
    if side not in sides:
        raise CelrecError(f"side must be one of {', '.join(sides)}, not {side!r}")
    if members < 0:
        raise CelrecError(f"members must not be negative, not {members}")
    table = sides[side]
    if "cluster" not in table.columns:
        raise CelrecError(f"the {side} are not clustered; look at the other side (--side)")
    return cluster_table(table, members)


def cluster_table(ids: pl.DataFrame, examples: int = 5) -> pl.DataFrame:
    """The same for a table of ids with the columns id, cluster, interactions and mean_target.

    >>> ids = pl.DataFrame({"id": [7, 8, 9], "title": ["Heat", None, None], "cluster": [0, 0, 1],
    ...                     "interactions": [3, 1, 2], "mean_target": [4.0, 2.0, 3.0]})
    >>> cluster_table(ids).rows()
    [(0, 2, 4, 3.5, ['Heat', '8']), (1, 1, 2, 3.0, ['9'])]
    """
    count = pl.col("interactions")
    total = (pl.col("mean_target").fill_nan(0) * count).sum()
    return (
        ids.group_by("cluster")
        .agg(
            members=pl.len(),
            interactions=count.sum(),
            mean_target=(total / count.sum()).fill_nan(None),
            examples=_names(ids).sort_by("interactions", descending=True).head(examples),
        )
        .sort("mean_target", "cluster", descending=[True, False], nulls_last=True)
    )


def _names(ids: pl.DataFrame) -> pl.Expr:
    """The title of each id; the id itself where there is none."""
    name = pl.col("id").cast(pl.String)
    return pl.coalesce(pl.col("title").cast(pl.String), name) if "title" in ids.columns else name
