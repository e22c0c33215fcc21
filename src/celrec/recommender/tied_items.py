"""Items that get the same score from every user, so that they are scored once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.recommender.model import Model

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
        cluster = _vectors(shared, count)
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
    return np.arange(count)


def _both(first: Labels, second: NDArray[np.integer]) -> Labels:
    """Equal where both are equal, numbered from 0 so that repeated products stay small."""
    low, high = int(second.min(initial=0)), int(second.max(initial=0))
    values = first * (high - low + 1) + (second.astype(np.int64) - low)
    labels: Labels = np.unique(values, return_inverse=True)[1]
    return labels
