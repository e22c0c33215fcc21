"""Initial clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.errors import CelrecError


def random_clusters(log: Interactions, side: str, count: int, seed: int) -> NDArray[np.int64]:
    """Every id in one of `count` clusters at random, none empty."""
    size = len(_counts(log, side))
    rng = np.random.default_rng(seed)
    clusters = rng.integers(count, size=size)
    clusters[rng.permutation(size)[:count]] = np.arange(min(count, size))
    return _numbered(clusters)


def rating_bins(log: Interactions, side: str, count: int, seed: int) -> NDArray[np.int64]:
    """`count` bins of ids by mean rating, of equal size; ids without ratings have the mean."""
    del seed
    log = log.seen()
    counts, ids = _counts(log, side), log.item if side == "items" else log.user
    sums = np.bincount(ids, log.target, len(counts))
    means = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / max(len(log), 1))
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(means, kind="stable")] = np.arange(len(counts))
    return _numbered(rank * count // len(counts))


def genres(log: Interactions, side: str, count: int, seed: int) -> NDArray[np.int64]:
    """A cluster for every first genre, and one for ids without."""
    del count, seed
    features = log.item_features if side == "items" else log.user_features
    if features is None or "genres" not in features.columns:
        raise CelrecError(f"the data have no genres of {side} to start from; start with 'one'")
    first = features.get_column("genres").list.first()
    return _numbered(first.fill_null("").rank("dense").to_numpy())


def run_clusters(log: Interactions, side: str, run: str | Path) -> NDArray[np.int64]:
    """The clusters of a trained run; unknown ids join its largest cluster."""
    try:
        table = pl.read_parquet(Path(run, f"{side}.parquet"))
        known = table.select("id", "cluster")
    except (OSError, pl.exceptions.PolarsError) as error:
        names = ", ".join(["one", *CLUSTERINGS])
        raise CelrecError(
            f"start must be one of {names} or a run folder with clustered {side}, not {str(run)!r}"
        ) from error
    ids = (log.item_ids if side == "items" else log.user_ids).ids
    largest = int(known.get_column("cluster").mode().min())  # type: ignore[arg-type]
    wanted = pl.DataFrame({"id": ids[: len(_counts(log, side))]})
    try:
        found = wanted.join(known, on="id", how="left", maintain_order="left")
    except pl.exceptions.PolarsError as error:
        raise CelrecError(f"start: the ids of {run} are of another kind than these") from error
    return _numbered(found.get_column("cluster").fill_null(largest).to_numpy())


CLUSTERINGS: dict[str, Callable[[Interactions, str, int, int], NDArray[np.int64]]] = {
    "random": random_clusters,
    "ratings": rating_bins,
    "genres": genres,
}
"""Clusterings by name, given a log, a side, a number of clusters and a seed."""


def _counts(log: Interactions, side: str) -> NDArray[np.int64]:
    return log.item_counts if side == "items" else log.user_counts


def _numbered(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """The same clusters, numbered from 0 without gaps."""
    numbers: NDArray[np.int64] = np.unique(labels, return_inverse=True)[1]
    return numbers


def starting_clusters(start: str, log: Interactions, side: str, seed: int) -> NDArray[np.int64]:
    """The initial clusters that `start` names.

    `one`: all ids in one cluster; `random:20` and `ratings:20`: in 20 of them;
    `genres`; else the folder of a run whose clusters are taken.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 1, 1], "item": [5, 6, 7], "rating": [1.0, 5.0, 2.0]})
    >>> starting_clusters("ratings:2", log, "items", seed=0)
    array([0, 1, 0])
    """
    name, _, number = start.partition(":")
    if start == "one":
        return np.zeros(len(_counts(log, side)), np.int64)
    if name not in CLUSTERINGS or (name == "genres" and number):
        return run_clusters(log, side, start)
    if name in ("random", "ratings") and not (number.isdecimal() and int(number) > 0):
        raise CelrecError(f"start needs a number of clusters, as in {name}:20, not {start!r}")
    # More clusters than ids would be empty.
    count = min(int(number or 0), len(_counts(log, side)))
    return CLUSTERINGS[name](log, side, count, seed)
