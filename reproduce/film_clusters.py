"""Clusters of films, and what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.errors import CelrecError
from celrec.evaluation.cluster_diagnostics import rating_spreads

_TITLES = 5
_GENRES = 3


def clusters_of(table: Embedding) -> tuple[Tensor, NDArray[np.int64]]:
    """Rows that ids have, and which of these is the row of each id.

    Of a mixture of all rows it is the one with the largest weight.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> table = ClusteredEmbedding(4, 2, max_clusters=3)
    >>> _ = table.split(0, torch.tensor([3]))
    >>> rows, clusters = clusters_of(table)
    >>> rows.shape, clusters
    (torch.Size([2, 2]), array([0, 0, 0, 1]))
    """
    if isinstance(table, SharedRows):
        weight, row = table.weight, table.row_of(torch.arange(table.num_embeddings))
    elif isinstance(table, PreHashEmbedding) and table.k == len(table.weight):
        weight, own = table.weight, table.own.long()
        row = torch.where(own < table.k, own, table.logit.argmax(1))
    else:
        raise CelrecError(f"table: ids of a {type(table).__name__} are in no clusters")
    used, clusters = np.unique(row.numpy(), return_inverse=True)
    return weight.detach()[torch.from_numpy(used)], clusters


def describe_clusters(clusters: NDArray[np.int64], log: Interactions) -> list[dict[str, Any]]:
    """Each cluster of items that has ratings, the lowest mean rating first.

    `spread` is the standard deviation of its ratings, `item_spread` that of its items' mean
    ratings, each item counted as often as it is rated. Of the `genres` those come first whose
    share of the cluster's items is most above their share of all items.
    """
    number = int(clusters.max()) + 1
    spreads = rating_spreads(clusters, log, number)
    frame = _items(log).with_columns(cluster=pl.Series(clusters))
    shares = _genre_shares(frame)
    told = []
    for (cluster,), mine in frame.filter(pl.col("ratings") > 0).group_by("cluster"):
        ratings, means = mine["ratings"].to_numpy(), mine["mean"].to_numpy()
        mean = float(np.average(means, weights=ratings))
        known = mine.sort("ratings", descending=True, maintain_order=True)
        told.append(
            {
                "items": int((clusters == cluster).sum()),
                "ratings": int(ratings.sum()),
                "mean": mean,
                "spread": float(spreads[cluster]),
                "item_spread": float(np.average((means - mean) ** 2, weights=ratings)) ** 0.5,
                "genres": _most_above(shares.filter(pl.col("cluster") == cluster)),
                "titles": known["title"].head(_TITLES).to_list(),
            }
        )
    return sorted(told, key=lambda one: one["mean"])


def _items(log: Interactions) -> pl.DataFrame:
    if log.item_features is None:
        raise CelrecError("log: nothing is known of its items; take one with titles and genres")
    counts = log.item_counts
    sums = np.bincount(log.item, log.target, log.num_items)
    return log.item_features.select("title", "genres").with_columns(
        ratings=pl.Series(counts), mean=pl.Series(sums / np.maximum(counts, 1))
    )


def _genre_shares(frame: pl.DataFrame) -> pl.DataFrame:
    """The share of a cluster's items that a genre has, and how far above that of all items."""
    labelled = frame.explode("genres").drop_nulls("genres").rename({"genres": "genre"})
    overall = labelled.group_by("genre").agg(overall=pl.len() / len(frame))
    sizes = frame.group_by("cluster").len("size")
    return (
        labelled.group_by("cluster", "genre")
        .len("items")
        .join(sizes, on="cluster")
        .join(overall, on="genre")
        .with_columns(share=pl.col("items") / pl.col("size"))
        .with_columns(above=pl.col("share") - pl.col("overall"))
        .sort("cluster", "genre")
    )


def _most_above(shares: pl.DataFrame) -> list[list[Any]]:
    first = shares.sort("above", descending=True, maintain_order=True).head(_GENRES)
    return [list(row) for row in first.select("genre", "share", "above").iter_rows()]
