"""Cluster listings, cluster members and search of ids, for the web page and its API."""

from __future__ import annotations

from typing import Any

import polars as pl

from celrec.inference.clusters import cluster_table
from celrec.service.guard import UnknownError
from celrec.service.messages import Cluster, Clusters, IdInfo, Members, SearchResult
from celrec.service.version import Version

_EXAMPLES = 5


def clusters_of(version: Version, side: str) -> Clusters:
    """All clusters of a side, sorted by mean target, highest first."""
    table = cluster_table(_clustered(version, side), _EXAMPLES)
    clusters = [Cluster.model_construct(**row) for row in table.iter_rows(named=True)]
    return Clusters.model_construct(version=version.number, side=side, clusters=clusters)


def members_of(version: Version, side: str, cluster: int, start: int, count: int) -> Members:
    """A page of the members of a cluster, the most active first."""
    table = _clustered(version, side).filter(pl.col("cluster") == cluster)
    if not len(table):
        raise UnknownError(f"cluster {cluster} does not exist; GET /clusters lists all of them")
    page = table.sort("interactions", descending=True, maintain_order=True)[start : start + count]
    return Members.model_construct(
        version=version.number, side=side, cluster=cluster, total=len(table), members=_infos(page)
    )


def search_ids(version: Version, side: str, text: str, count: int) -> SearchResult:
    """Ids that contain a text in the id or the title: an exact match, then the most active."""
    table = _table(version, side)
    if text:
        lowered = text.lower()
        names = [name for name in ("id", "title") if name in table.columns]
        contains = [
            pl.col(name).cast(pl.String).str.to_lowercase().str.contains(lowered, literal=True)
            for name in names
        ]
        exact = pl.col("id").cast(pl.String) == text
        table = table.filter(pl.any_horizontal(contains)).sort(
            exact.cast(pl.Int8), descending=True, maintain_order=True
        )
        first = table.head(1).filter(exact)
        table = pl.concat([first, table.filter(~exact).top_k(count, by="interactions")])
    else:
        table = table.top_k(count, by="interactions")
    return SearchResult.model_construct(version=version.number, found=_infos(table.head(count)))


def _table(version: Version, side: str) -> pl.DataFrame:
    if side not in version.sides:
        raise UnknownError(f"side must be one of {', '.join(version.sides)}, not {side!r}")
    return version.sides[side]


def _clustered(version: Version, side: str) -> pl.DataFrame:
    table = _table(version, side)
    if "cluster" not in table.columns:
        raise UnknownError(f"the {side} are not clustered; request another side")
    return table


def _infos(table: pl.DataFrame) -> list[IdInfo]:
    rows: list[dict[str, Any]] = table.select(
        name for name in ("id", "title", "interactions", "cluster") if name in table.columns
    ).to_dicts()
    return [IdInfo.model_construct(**row) for row in rows]
