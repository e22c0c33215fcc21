"""What a clustering of items looks like from inside."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from celrec.cel.split import eigenvalue_ratio
from celrec.data.interactions import Interactions
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError
from celrec.offline.factorisation_solver import DotProductEvidence
from celrec.recommender.model import Model

CHUNK = 512  # rows that are compared with all others at once


@dataclass(frozen=True, slots=True)
class ClusterDiagnostics:
    """Measurements of the rows and the members of item clusters; None where there is nothing.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2, 1], "item": [7, 7, 9], "rating": [1.0, 3.0, 5.0]})
    >>> rows = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    >>> genres = pl.Series([["War", "Drama"], ["Drama"]])
    >>> found = ClusterDiagnostics.of(rows, np.array([0, 1]), log, genres)
    >>> found.outside_central, found.duplicate_rows
    (0.5, 0)
    >>> round(found.rating_spread, 3), round(found.rating_spread_overall, 3)
    (0.667, 1.633)
    >>> found.genre_entropy_normalised  # Drama is spread evenly, War is in one cluster
    0.5
    """

    outside_central: float
    """Share of the rows b outside of the cone C = {b : 1ᵀb ≥ √(R−1)·‖b‖} around (1, …, 1).

    Rows that are sufficiently scattered, so that the clusters are identifiable, lie outside.
    """
    duplicate_rows: int
    """Number of rows less that of groups of them which (chains of) near-equality connect.

    Rows b and c are nearly equal if ‖b − c‖ ≤ tolerance·max(‖b‖, ‖c‖).
    """
    rating_spread: float | None
    """Mean over interactions of the standard deviation of all ratings in their cluster."""
    rating_spread_overall: float | None
    """Standard deviation of all ratings: what the other is with one cluster, and at most."""
    genre_entropy: float | None
    """Mean over genres g of −Σ_k p_g(k)·ln p_g(k), p_g(k) being the share of the items of
    genre g that are in cluster k. An item with several genres counts in each.
    """
    genre_entropy_normalised: float | None
    """The same divided by the logarithm of the number of clusters: 0 … 1."""

    @classmethod
    def of(
        cls,
        rows: Tensor,
        assignment: NDArray[Any] | Tensor,
        log: Interactions,
        genres: pl.Series | None = None,
        *,
        tolerance: float = 1e-3,
    ) -> ClusterDiagnostics:
        """Measure clusters with these `rows`, given the cluster of each item.

        `genres` has a list of labels for each item, or null, as in
        `log.item_features["genres"]`. Interactions with unseen items are left out.
        """
        if rows.ndim != 2 or not rows.numel():
            raise CelrecError(
                f"rows must be clusters × dim, at least one of each, not of shape "
                f"{tuple(rows.shape)}"
            )
        rows = rows.detach().cpu().double()
        if not bool(rows.isfinite().all()):
            raise CelrecError("rows must be finite, not infinite or NaN: lower the learning rate")
        if not tolerance >= 0:
            raise CelrecError(f"tolerance must be at least 0, not {tolerance}")
        clusters = _checked(assignment, log, len(rows))
        known = log.item >= 0
        rated, ratings = clusters[log.item[known]], log.target[known]
        spreads = rating_spreads(clusters, log, len(rows))
        entropy = None if genres is None else _genre_entropy(genres, clusters)
        return cls(
            outside_central=_outside_central(rows),
            duplicate_rows=_duplicates(rows, tolerance),
            rating_spread=float(spreads[rated].mean()) if len(rated) else None,
            rating_spread_overall=float(ratings.std(dtype=np.float64)) if len(rated) else None,
            genre_entropy=entropy,
            genre_entropy_normalised=(
                None if entropy is None or len(rows) == 1 else entropy / math.log(len(rows))
            ),
        )


def rating_spreads(
    assignment: NDArray[Any] | Tensor, log: Interactions, clusters: int
) -> NDArray[np.float64]:
    """The standard deviation of the ratings in each item cluster, NaN for one without any.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2, 1], "item": [7, 7, 9], "rating": [1.0, 3.0, 5.0]})
    >>> rating_spreads(np.array([0, 2]), log, clusters=3)
    array([ 1., nan,  0.])
    """
    known = log.item >= 0
    rated, ratings = _checked(assignment, log, clusters)[log.item[known]], log.target[known]
    counts = np.bincount(rated, minlength=clusters)
    at_least_one = np.maximum(counts, 1)
    means = np.bincount(rated, ratings, clusters) / at_least_one
    squares = np.bincount(rated, (ratings - means[rated]) ** 2, clusters) / at_least_one
    return np.where(counts, np.sqrt(squares), np.nan)


def _checked(
    assignment: NDArray[Any] | Tensor, log: Interactions, clusters: int
) -> NDArray[np.int64]:
    given = assignment.cpu().numpy() if isinstance(assignment, Tensor) else np.asarray(assignment)
    if given.shape != (log.num_items,) or given.dtype.kind not in "iu":
        raise CelrecError(
            f"assignment must have one integer for each of the {log.num_items:,} items of the log, "
            f"not {given.dtype} of shape {given.shape}; leave out the place of unseen items"
        )
    if given.size and not (given.min() >= 0 and given.max() < clusters):
        raise CelrecError(
            f"assignment must name clusters 0 … {clusters - 1}, not {given.min()} … {given.max()}"
        )
    return given.astype(np.int64)


def _outside_central(rows: Tensor) -> float:
    total, square = rows.sum(1), rows.square().sum(1)
    # Compared without roots, whose rounding would decide about rows on the border.
    outside = (total < 0) | (total.square() < (rows.shape[1] - 1) * square)
    return float(outside.double().mean())


def _duplicates(rows: Tensor, tolerance: float) -> int:
    """Every group joins the lowest among the near-equals of its rows, until none changes.

    A group is known by its first row. Few rounds are enough, even for long chains.
    """
    lengths, numbers = rows.norm(dim=1), torch.arange(len(rows))
    group, before = numbers.clone(), numbers - 1
    while not torch.equal(group, before):
        before = group.clone()
        for start in range(0, len(rows), CHUNK):
            some = slice(start, start + CHUNK)
            # Not by matrix products, which would not find that equal rows have distance 0.
            distance = torch.cdist(rows[some], rows, compute_mode="donot_use_mm_for_euclid_dist")
            near = distance <= tolerance * torch.maximum(lengths[some, None], lengths)
            lowest = group.where(near, len(rows)).amin(1)
            group.scatter_reduce_(0, before[some], lowest, "amin")
        group = group[group]  # rows follow the first one of theirs
    return int((group != numbers).sum())


def _genre_entropy(genres: pl.Series, clusters: NDArray[np.int64]) -> float | None:
    if not isinstance(genres.dtype, pl.List) or len(genres) != len(clusters):
        raise CelrecError(
            f"genres must have a list of labels for each of the {len(clusters):,} items, "
            f"not {len(genres):,} of {genres.dtype}"
        )
    frame = pl.DataFrame({"genre": genres.list.unique(maintain_order=True), "cluster": clusters})
    labelled = frame.explode("genre").drop_nulls("genre")
    counts = labelled.group_by("genre", "cluster", maintain_order=True).len("items")
    entropies = counts.group_by("genre", maintain_order=True).agg(pl.col("items").entropy())
    mean: float | None = entropies.select(pl.col("items").mean()).item()
    return mean


@torch.no_grad()
def diagnose(model: Model, log: Interactions) -> dict[str, Any]:
    """The `ClusterDiagnostics` of the items' rows, and the median eigenvalue ratio.

    Private rows count as clusters too; of several levels, the clusters of the first are measured.
    The ratio is over rows shared by more ids than dimensions; it does not exist for rows with
    gradients in one direction only, and for networks.
    """
    items = model.tables["items"]
    table = items.clustered_levels[0] if isinstance(items, LevelledEmbedding) else model.item_rows
    everyone = torch.arange(table.num_embeddings)
    # Only rows that some item has, numbered without gaps.
    used, rows = np.unique(table.row_of(everyone).numpy(), return_inverse=True)
    genres = None
    if log.item_features is not None and "genres" in log.item_features.columns:
        genres = log.item_features.get_column("genres")
    found = ClusterDiagnostics.of(table.weight[torch.from_numpy(used)], rows, log, genres)
    ratio = _median_ratio(model, log, rows) if model.factorised else None
    return {**asdict(found), "eigenvalue_ratio": ratio}


def _median_ratio(model: Model, log: Interactions, rows: NDArray[np.int64]) -> float | None:
    evidence = DotProductEvidence(model, log, "items")
    everyone = torch.arange(len(rows))
    large = np.flatnonzero(np.bincount(rows) > model.item_rows.embedding_dim)
    ratios = [
        eigenvalue_ratio(evidence.gradients(everyone[torch.from_numpy(rows == row)]))
        for row in large
    ]
    ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
    return float(np.median(ratios)) if ratios else None


def adjusted_rand_index(first: ArrayLike, second: ArrayLike) -> float:
    """The agreement of two labelings of the same things, whatever the labels are called.

    Of all t = n·(n − 1)/2 pairs of things, a are together in the first labeling, b
    in the second and c in both (Hubert and Arabie, 1985):

        ARI = (c − a·b/t) / ((a + b)/2 − a·b/t)

    It is 1 for equal partitions, also trivial ones, and 0 in expectation for independent ones.
    Pairs are counted exactly, for any n.

    >>> adjusted_rand_index([0, 0, 1, 1], [7, 7, 3, 3])
    1.0
    >>> adjusted_rand_index([0, 0, 1, 1], [0, 1, 0, 1])
    -0.5
    """
    one, other = _codes("first", first), _codes("second", second)
    if len(one) != len(other) or not len(one):
        raise CelrecError(
            f"first and second must label the same things, at least one, "
            f"not {len(one):,} and {len(other):,}"
        )
    together_first, together_second = _pairs(one), _pairs(other)
    together_in_both = _pairs(one * (other.max() + 1) + other)
    total = len(one) * (len(one) - 1) // 2
    # Numerator and denominator times 2t are integers; those of Python do not overflow.
    by_chance = together_first * together_second
    above_chance = 2 * (total * together_in_both - by_chance)
    at_most = total * (together_first + together_second) - 2 * by_chance
    return above_chance / at_most if at_most else 1.0  # 0 only where both partitions are trivial


def _codes(name: str, labels: ArrayLike) -> NDArray[np.int64]:
    """The labels, numbered from 0 without gaps: pairs of them can be numbered in 64 bits then."""
    values = np.asarray(labels)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise CelrecError(
            f"{name} must be a list of integers, not {values.dtype} of shape {values.shape}"
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _pairs(labels: NDArray[np.int64]) -> int:
    sizes = np.unique(labels, return_counts=True)[1].astype(np.int64)
    return int((sizes * (sizes - 1) // 2).sum())
