"""Item vectors that are computed once, and items that a model cannot tell apart."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.recommender.materialised import Materialised
from celrec.recommender.model import Model


def with_materialised_items(model: Model) -> Model:
    """The model with a vector for each item, where those are computed from several rows.

    It predicts the same, and shares all else with the model. Where an item has one row, perhaps the
    same as others, that is quicker as it is, and the model is given back.

    >>> import torch
    >>> from celrec.embeddings.posterior import PosteriorEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> slow = Model(FullEmbedding(4, 2), PosteriorEmbedding(5, 2, rows=3))
    >>> quick = with_materialised_items(slow)
    >>> type(quick.items).__name__, type(slow.items).__name__
    ('Materialised', 'PosteriorEmbedding')
    >>> torch.equal(quick.items(torch.tensor([3, -1])), slow.items(torch.tensor([3, -1])))
    True
    """
    if isinstance(_beneath(model.items), SharedRows):
        return model
    quick = copy(model)
    quick._modules = dict(model._modules)  # the copy has the same dictionary
    quick.items = Materialised(model.items)
    return quick


def _beneath(table: Embedding) -> Embedding:
    """The table that others add something to."""
    while not isinstance(table, SharedRows):
        if isinstance(table, BiasedEmbedding | QuantisedEmbedding):
            table = table.rows
        elif isinstance(table, PersonalEmbedding):
            table = table.shared
        else:
            break
    return table


Labels = NDArray[np.int64]
"""A number for each item, 0 or more."""


class TiedItems(NamedTuple):
    """Which items a model cannot tell apart: those with equal labels.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> items = ClusteredEmbedding(5, 2, max_clusters=2)
    >>> _ = items.split(0, torch.tensor([1, 3]))
    >>> TiedItems.of(Model(FullEmbedding(3, 2), items), 5).score
    array([0, 1, 0, 1, 0])
    """

    score: Labels
    """They have the same vector and the same features, so each user gives them the same score,
    but for what is their `own`."""
    vector: Labels
    """They have the same vector."""
    cluster: Labels
    """They share a row, from which some may differ by one of their own."""
    own: NDArray[np.float32] | None
    """What each item adds to its score whoever the user is, where it has a bias of its own."""

    @classmethod
    def of(cls, model: Model, count: int) -> TiedItems:
        """Of the first so many items of a model."""
        table: Embedding = model.items
        own = None
        if isinstance(table, BiasedEmbedding):
            own = table.bias.detach().numpy()[:count].astype(np.float32)
            table = table.rows
        vector = _vectors(table, count)
        shared = table.shared if isinstance(table, PersonalEmbedding) else table
        cluster = _vectors(shared, count)
        score = vector
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
    return np.arange(count)


def _both(first: Labels, second: NDArray[np.integer]) -> Labels:
    """Equal where both are; numbered anew, as products become large."""
    low, high = int(second.min(initial=0)), int(second.max(initial=0))
    values = first * (high - low + 1) + (second.astype(np.int64) - low)
    labels: Labels = np.unique(values, return_inverse=True)[1]
    return labels


def row_weights(model: Model, side: str, number: int, *, least: float = 0.01) -> dict[int, float]:
    """The weight of each row for one id, the largest first, those of `least` and more.

    Empty where ids are not between rows.

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
