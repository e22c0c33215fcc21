"""Clusters and ids of a version, for people to look at."""

from __future__ import annotations

from typing import Any

import polars as pl

from celrec.service.guard import UnknownError
from celrec.service.messages import Cluster, Clusters, Found, Members, Named
from celrec.service.version import Version

_EXAMPLES = 5


def clusters_of(version: Version, side: str) -> Clusters:
    """All clusters of a side, the best rated first."""
    table = _clustered(version, side)
    label = "title" if "title" in table.columns else "id"
    active = pl.col(label).cast(pl.String).sort_by("interactions", descending=True)
    total = (pl.col("mean_target").fill_nan(0) * pl.col("interactions")).sum()
    summary = (
        table.group_by("cluster")
        .agg(
            members=pl.len(),
            interactions=pl.col("interactions").sum(),
            mean_target=total / pl.col("interactions").sum(),
            examples=active.head(_EXAMPLES),
        )
        .with_columns(pl.col("mean_target").fill_nan(None))
        .sort("mean_target", "cluster", descending=[True, False], nulls_last=True)
    )
    found = [Cluster.model_construct(**row) for row in summary.iter_rows(named=True)]
    return Clusters.model_construct(version=version.number, side=side, clusters=found)


def members_of(version: Version, side: str, cluster: int, start: int, count: int) -> Members:
    """Some members of a cluster, the most active first."""
    table = _clustered(version, side).filter(pl.col("cluster") == cluster)
    if not len(table):
        raise UnknownError(f"cluster {cluster} is not there; GET /clusters names those that are")
    page = table.sort("interactions", descending=True, maintain_order=True)[start : start + count]
    return Members.model_construct(
        version=version.number, side=side, cluster=cluster, total=len(table), members=_named(page)
    )


def search_ids(version: Version, side: str, text: str, count: int) -> Found:
    """The ids of a side whose id or title holds a text, the most active first."""
    table = _table(version, side)
    if text:
        wanted = text.lower()
        names = [name for name in ("id", "title") if name in table.columns]
        holds = [
            pl.col(name).cast(pl.String).str.to_lowercase().str.contains(wanted, literal=True)
            for name in names
        ]
        exact = pl.col("id").cast(pl.String) == text
        table = table.filter(pl.any_horizontal(holds)).sort(
            exact.cast(pl.Int8), descending=True, maintain_order=True
        )
        first = table.head(1).filter(exact)
        table = pl.concat([first, table.filter(~exact).top_k(count, by="interactions")])
    else:
        table = table.top_k(count, by="interactions")
    return Found.model_construct(version=version.number, found=_named(table.head(count)))


def _table(version: Version, side: str) -> pl.DataFrame:
    if side not in version.sides:
        raise UnknownError(f"side must be one of {', '.join(version.sides)}, not {side!r}")
    return version.sides[side]


def _clustered(version: Version, side: str) -> pl.DataFrame:
    table = _table(version, side)
    if "cluster" not in table.columns:
        raise UnknownError(f"the {side} are not clustered; ask for another side")
    return table


def _named(table: pl.DataFrame) -> list[Named]:
    rows: list[dict[str, Any]] = table.select(
        name for name in ("id", "title", "interactions", "cluster") if name in table.columns
    ).to_dicts()
    return [Named.model_construct(**row) for row in rows]
