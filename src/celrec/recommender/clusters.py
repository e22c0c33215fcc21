"""Clusters of a trained model: personalised, merged and described; items with equal scores."""

from __future__ import annotations

import copy
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.cel.reassignment import merge_while
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.errors import CelrecError
from celrec.recommender.model import Model


def personalise(model: Model, log: Interactions, above: int = 0) -> Model:
    """A copy of `model` where ids with more than `above` interactions have rows of their own.

    They get a copy of the row of their cluster, so predictions stay the same. In further training
    solvers draw the new rows towards these rows.
    """
    if above < 0:
        raise CelrecError(f"above must not be negative, not {above}")
    personal = copy.deepcopy(model)
    counts = {"users": log.user_counts, "items": log.item_counts}
    counts |= {name: column.counts for name, column in log.columns.items()}
    warm = {side: torch.from_numpy(number > above) for side, number in counts.items()}
    personal.replace_tables(lambda name, table: _mixed(table, warm[name]))
    return personal


def _mixed(table: Embedding, warm: torch.Tensor) -> Embedding:
    if isinstance(table, BiasedEmbedding):
        table.rows = _mixed(table.rows, warm)
        return table
    if isinstance(table, QuantisedEmbedding) and isinstance(table.rows, ClusteredEmbedding):
        return QuantisedEmbedding(MixedEmbedding.personalise(table.rows, warm))
    if isinstance(table, ClusteredEmbedding):
        return MixedEmbedding.personalise(table, warm)
    if isinstance(table, LevelledEmbedding):
        raise CelrecError(
            "personalise is for tables of one level, not for sums of rows of several; leave it out"
        )
    return table


@torch.no_grad()
def merge_similar(model: Model, log: Interactions, side: str, tolerance: float) -> int:
    """Merge clusters while the error on `log` rises by at most `tolerance`; the number of merges.

    The nearest pair is merged first, by the distance (b − b′)ᵀ·E[a·aᵀ]·(b − b′) over the rows a of
    the partner table; the merged row is the mean, weighted by members.
    """
    tables = model.user_rows, model.item_rows
    other, table = tables if side == "items" else tables[::-1]
    if not isinstance(table, ClusteredEmbedding) or not len(log):
        return 0
    target = torch.tensor(log.target)
    limit = float((model.predict(log) - target).square().mean()) + tolerance
    partners = other(torch.arange(other.num_embeddings))
    metric = partners.T @ partners / len(partners)

    def acceptable() -> bool:
        return float((model.predict(log) - target).square().mean()) <= limit

    return merge_while(table, metric, acceptable)


def remaining_clusters(model: Model, side: str) -> NDArray[np.int64] | None:
    """The cluster of each id of a personalised table, −1 for ids with a row of their own.

    None for tables of other kinds.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> shared = ClusteredEmbedding(3, 2, max_clusters=2)
    >>> items = MixedEmbedding.personalise(shared, torch.tensor([True, False, False]))
    >>> remaining_clusters(Model(FullEmbedding(3, 2), items), "items")
    array([-1,  0,  0])
    """
    table = model.tables[side]
    if not isinstance(table, MixedEmbedding):
        return None
    rows = table.row_of(torch.arange(table.num_embeddings))
    return torch.where(rows < table.shared_rows, rows, -1).numpy()


def level_codes(model: Model, side: str, count: int) -> NDArray[np.int64] | None:
    """(ids, levels): the cluster of each of the first ids in each level of its table.

    None for tables without levels.
    """
    table = model.tables[side]
    if isinstance(table, PersonalEmbedding):
        table = table.shared
    if not isinstance(table, LevelledEmbedding):
        return None
    return table.codes(torch.arange(count)).numpy()


def split_tree(model: Model, side: str, level: int = 1) -> NDArray[np.int64] | None:
    """The cluster that each cluster of a table, or of one of its levels, was split from.

    −1 for the first ones; None for tables without clusters, and for mixtures of rows.

    >>> from celrec.recommender.model import Model
    >>> from celrec.embeddings.full import FullEmbedding
    >>> import torch
    >>> items = ClusteredEmbedding(5, 2, max_clusters=3)
    >>> items.split(0, torch.tensor([3, 4])), items.split(1, torch.tensor([4]))
    (1, 2)
    >>> model = Model(FullEmbedding(3, 2), items)
    >>> split_tree(model, "items"), split_tree(model, "users")
    (array([-1,  0,  1]), None)
    """
    table = model.tables[side]
    if isinstance(table, PersonalEmbedding):
        table = table.shared
    if isinstance(table, LevelledEmbedding):
        table = table.clustered_levels[level - 1]
    if not isinstance(table, ClusteredEmbedding):
        return None
    return table.parent[: table.num_clusters].long().numpy()


def row_weights(model: Model, side: str, number: int, *, least: float = 0.01) -> dict[int, float]:
    """The weights of at least `least` of the rows that an id mixes, largest first.

    Empty for tables that do not mix rows.

    >>> from celrec.recommender.model import Model
    >>> from celrec.embeddings.full import FullEmbedding
    >>> row_weights(Model(FullEmbedding(3, 2), FullEmbedding(4, 2)), "items", 0)
    {}
    """
    table = model.tables[side]
    if isinstance(table, PersonalEmbedding):
        table = table.shared
    if not isinstance(table, PosteriorEmbedding):
        return {}
    weights = table.weights(torch.tensor([number]))[0]
    order = weights.argsort(descending=True)
    return {int(row): round(float(weights[row]), 4) for row in order if weights[row] >= least}


Labels = NDArray[np.int64]
"""A number for each item, 0 or more."""


class TiedItems(NamedTuple):
    """Labels of items; a model cannot tell items with equal labels apart.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> items = ClusteredEmbedding(5, 2, max_clusters=2)
    >>> _ = items.split(0, torch.tensor([1, 3]))
    >>> TiedItems.of(Model(FullEmbedding(3, 2), items), 5).score
    array([0, 1, 0, 1, 0])
    """

    score: Labels
    """Equal for items with the same vector and the same features: their scores differ by their
    `own` biases only."""
    vector: Labels
    """Equal for items with the same vector, biases left out."""
    cluster: Labels
    """Equal for items that share a row, offsets of single items left out."""
    own: NDArray[np.float32] | None
    """The bias of each item, where biases have a table of their own."""

    @classmethod
    def of(cls, model: Model, count: int) -> TiedItems:
        """The labels of the first `count` items."""
        table: Embedding = model.items
        bias = own = None
        if isinstance(table, BiasedEmbedding):
            bias = table.bias.detach().numpy()[:count].astype(np.float32)
            table = table.rows
        vector = _vectors(table, count)
        shared = table.shared if isinstance(table, PersonalEmbedding) else table
        cluster = vector if shared is table else _vectors(shared, count)
        score = vector
        if model.model.bilinear:
            own = bias
        elif bias is not None:  # what a network makes of a bias depends on the user
            score = np.arange(count)
        if len(model.item_features):
            for column in model.item_features.known(torch.arange(count)).numpy().T:
                score = _both(score, column)
        return cls(score, vector, cluster, own)


def _vectors(table: Embedding, count: int) -> Labels:
    ids = torch.arange(count)
    if isinstance(table, QuantisedEmbedding):
        return _vectors(table.rows, count)
    if isinstance(table, PersonalEmbedding):
        return _both(_vectors(table.shared, count), table.own_of(ids).numpy())
    if isinstance(table, SharedRows):
        return table.row_of(ids).numpy()
    if isinstance(table, LevelledEmbedding):
        return reduce(_both, table.codes(ids).numpy().T)
    return np.arange(count)


def _both(first: Labels, second: NDArray[np.integer]) -> Labels:
    """Equal where both are equal, numbered from 0 so that repeated products stay small."""
    low, high = int(second.min(initial=0)), int(second.max(initial=0))
    values = first * (high - low + 1) + (second.astype(np.int64) - low)
    labels: Labels = np.unique(values, return_inverse=True)[1]
    return labels


def graft(model: Model, trees: dict[str, NDArray[np.int64]]) -> None:
    """Let clusters that were given have the split tree by which they came about."""
    for side, tree in trees.items():
        table = model.tables[side]
        if isinstance(table, ClusteredEmbedding):
            table.parent[: len(tree)] = torch.from_numpy(tree)


def trees_of(model: Model) -> dict[str, NDArray[np.int64]]:
    """The split tree of each clustered table."""
    trees = {side: split_tree(model, side) for side in clusters_of(model)}
    return {side: tree for side, tree in trees.items() if tree is not None}


def clusters_of(model: Model) -> dict[str, NDArray[np.int64]]:
    """The cluster of each id of each clustered table."""
    return {
        side: table.assignment[:-1].long().numpy()
        for side, table in model.tables.items()
        if isinstance(table, ClusteredEmbedding)
    }
