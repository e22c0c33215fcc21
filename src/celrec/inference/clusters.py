"""Clusters, one by one."""

from __future__ import annotations

import polars as pl

from celrec.errors import CelrecError
from celrec.runs.run_folder import Run


def cluster_summary(run: Run, side: str = "items", members: int = 5) -> pl.DataFrame:
    """A row for each cluster of a run, best rated first.

    Columns: cluster, members (how many), interactions, mean_target (null where there were no
    interactions), and examples: the titles, or else the ids, of up to `members` of the most
    active ones. `side` is items, users, or the name of a further column of ids.
    """
    sides = {"items": run.items, "users": run.users, **run.columns}
    if side not in sides:
        raise CelrecError(f"side must be one of {', '.join(sides)}, not {side!r}")
    if members < 0:
        raise CelrecError(f"members must not be negative, not {members}")
    table = sides[side]
    if "cluster" not in table.columns:
        raise CelrecError(f"the {side} are not clustered; look at the other side (--side)")
    name = pl.col("id").cast(pl.String)
    if "title" in table.columns:
        name = pl.coalesce("title", name)
    total = (pl.col("mean_target").fill_nan(0) * pl.col("interactions")).sum()
    best = name.sort_by("interactions", descending=True).head(members)
    return (
        table.group_by("cluster")
        .agg(
            members=pl.len(),
            interactions=pl.col("interactions").sum(),
            mean_target=(total / pl.col("interactions").sum()).fill_nan(None),
            examples=best,
        )
        .sort("mean_target", "cluster", descending=[True, False], nulls_last=True)
    )
