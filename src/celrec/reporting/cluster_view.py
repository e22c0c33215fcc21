"""The clusters of one table, with as many members as fit a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.inference.codes import codes_of, count_levels, table_of_level
from celrec.inference.explanation import cluster_table
from celrec.recommender.clusters import remaining_clusters, split_tree
from celrec.recommender.model import Model
from celrec.runs.run_folder import Run

_LONGEST = 100  # characters of an id or a title


@dataclass(frozen=True, slots=True)
class Cluster:
    """Ids that share a row."""

    number: int
    size: int
    interactions: int
    mean: float | None
    """The mean target of its interactions; None if there are none."""
    spread: float | None
    """The standard deviation that `ClusterView.of_targets` describes."""
    private: int
    """Members that also have a private row."""
    parent: int | None
    """The cluster that it was split from."""
    members: list[tuple[Any, ...]]
    """Id, title, interactions and mean target of the most active ones; with several levels also
    the path of their codes."""

    @property
    def names(self) -> list[str]:
        """The titles of these members, or their ids."""
        return [member[0] if member[1] is None else member[1] for member in self.members]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Clusters with their members, by number; the most active ones if there are very many."""

    side: str
    """The table; with several levels also the level."""
    key: str
    """Its name in links."""
    clusters: list[Cluster]
    count: int
    """The number of clusters, also of those that are left out."""
    ids: int
    """The number of ids in clusters."""
    alone: int
    """The number of ids with a row of their own, in no cluster."""
    mean: float | None
    """Of all targets."""
    titled: bool
    of_targets: bool
    """Whether spreads are standard deviations of the targets in a cluster; else, without the data,
    of its members' mean targets, weighted by their interactions."""
    parents: NDArray[np.int64] | None
    """The split tree, if there is one."""

    @classmethod
    def of(
        cls,
        run: Run,
        side: str,
        learned: Interactions | None,
        level: int = 1,
        *,
        most_clusters: int = 1000,
        most_members: int = 40_000,
    ) -> ClusterView | None:
        """The view of a level of `users`, `items` or a further column; None without clusters.

        `learned` are the training data with the ids of the run, if they are there.
        """
        table = table_of_level(run, side, level)
        codes, levels = codes_of(run, side), count_levels(run, side)
        if codes is not None and levels > 1:
            paths = pl.DataFrame(codes).select(pl.concat_str("*", separator=" → "))
            table = table.with_columns(codes=paths.to_series())
        clustered = _with_cluster(table, run.model, side)
        if clustered is None or clustered.get_column("cluster").null_count() == len(clustered):
            return None
        shared = clustered.filter(pl.col("cluster").is_not_null())
        clusters = cluster_table(shared, examples=0).join(_spreads_of_means(shared), on="cluster")
        targets = None if learned is None else _spreads(clustered, side, learned)
        parents = split_tree(run.model, side, level)
        kept = clusters.sort("interactions", "cluster", descending=[True, False])
        kept = kept.head(most_clusters).sort("cluster")
        members = _members(shared, kept, max(most_members // max(len(kept), 1), 3))
        key = side if side not in run.columns else f"column-{list(run.columns).index(side)}"
        return cls(
            side=side if levels == 1 else f"{side} in level {level}",
            key=key if levels == 1 else f"{key}-level-{level}",
            clusters=[
                Cluster(
                    number=row["cluster"],
                    size=row["members"],
                    interactions=row["interactions"],
                    mean=row["mean_target"],
                    spread=row["spread"] if targets is None else targets.get(row["cluster"]),
                    private=row["private"],
                    parent=_parent(parents, row["cluster"]),
                    members=members[row["cluster"]],
                )
                for row in kept.iter_rows(named=True)
            ],
            count=len(clusters),
            ids=len(shared),
            alone=len(clustered) - len(shared),
            mean=_overall(table),
            titled="title" in table.columns,
            of_targets=targets is not None,
            parents=parents,
        )

    @property
    def largest(self) -> int:
        """The size of the largest cluster."""
        return max(cluster.size for cluster in self.clusters)

    @property
    def furthest(self) -> float:
        """The largest absolute deviation of a cluster."""
        return max(abs(self.deviation(cluster)) for cluster in self.clusters) or 1.0

    @property
    def shown(self) -> int:
        """The number of members in the view."""
        return sum(len(cluster.members) for cluster in self.clusters)

    def deviation(self, cluster: Cluster) -> float:
        """The mean target of a cluster minus that of all."""
        return 0.0 if cluster.mean is None or self.mean is None else cluster.mean - self.mean

    def as_dict(self) -> dict[str, Any]:
        """The members for a script in the page."""
        return {
            str(cluster.number): [list(member) for member in cluster.members]
            for cluster in self.clusters
        }


def _with_cluster(table: pl.DataFrame, model: Model, side: str) -> pl.DataFrame | None:
    table = table.with_row_index("dense")
    if "private" not in table.columns:
        table = table.with_columns(private=pl.lit(False))
    if "cluster" in table.columns:
        return table
    remaining = remaining_clusters(model, side)
    if remaining is None:
        return None
    own = pl.Series(remaining[: len(table)]).cast(pl.Int32)
    return table.with_columns(
        cluster=pl.when(own >= 0).then(own).otherwise(None), private=pl.lit(False)
    )


def _spreads_of_means(shared: pl.DataFrame) -> pl.DataFrame:
    """For each cluster its private members, and the spread of its members' mean targets."""
    weight, mean = pl.col("interactions"), pl.col("mean_target").fill_nan(0)
    total, squares = (weight * mean).sum(), (weight * mean**2).sum()
    variance = squares / weight.sum() - (total / weight.sum()) ** 2
    return shared.group_by("cluster").agg(
        private=pl.col("private").sum(),
        spread=variance.clip(0).sqrt().fill_nan(None),
    )


def _spreads(table: pl.DataFrame, side: str, log: Interactions) -> dict[int, float]:
    if side not in ("users", "items"):
        dense = log.columns[side].values
    else:
        dense = log.user if side == "users" else log.item
    cluster = table.get_column("cluster").fill_null(-1).to_numpy()
    known = dense >= 0
    targets = pl.DataFrame({"cluster": cluster[dense[known]], "target": log.target[known]})
    found = (
        targets.filter(pl.col("cluster") >= 0)
        .group_by("cluster")
        .agg(pl.col("target").cast(pl.Float64).std(ddof=0))
    )
    return dict(found.iter_rows())


def _members(
    shared: pl.DataFrame, kept: pl.DataFrame, most: int
) -> dict[int, list[tuple[Any, ...]]]:
    title = pl.col("title").cast(pl.String) if "title" in shared.columns else pl.lit(None)
    shown = (
        shared.join(kept.select("cluster"), on="cluster", how="semi")
        .sort("cluster", "interactions", "dense", descending=[False, True, False])
        .group_by("cluster", maintain_order=True)
        .head(most)
        .select(
            "cluster",
            _clipped(pl.col("id").cast(pl.String)).alias("id"),
            _clipped(title.cast(pl.String)).alias("title"),
            "interactions",
            pl.col("mean_target").fill_nan(None).round(3),
            *(["codes"] if "codes" in shared.columns else []),
        )
    )
    found: dict[int, list[tuple[Any, ...]]] = {}
    for cluster, *member in shown.iter_rows():
        found.setdefault(cluster, []).append(tuple(member))
    return found


def _clipped(words: pl.Expr) -> pl.Expr:
    long = words.str.len_chars() > _LONGEST
    return pl.when(long).then(words.str.slice(0, _LONGEST - 1) + "…").otherwise(words)


def _parent(parents: NDArray[np.int64] | None, cluster: int) -> int | None:
    if parents is None or cluster >= len(parents) or parents[cluster] < 0:
        return None
    return int(parents[cluster])


def _overall(table: pl.DataFrame) -> float | None:
    counts = table.get_column("interactions").to_numpy()
    sums = table.get_column("mean_target").fill_nan(0).to_numpy() @ counts
    return float(sums) / int(counts.sum()) if counts.sum() else None
