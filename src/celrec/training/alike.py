"""Items that a model cannot tell apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.training.id_model import IdModel
from celrec.training.model import Model

Labels = NDArray[np.int64]
"""A number for each item, 0 or more."""


class Alike(NamedTuple):
    """Which items a model cannot tell apart: those with equal labels.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.training.factorisation import Factorisation
    >>> items = ClusteredEmbedding(5, 2, max_clusters=2)
    >>> _ = items.split(0, torch.tensor([1, 3]))
    >>> Alike.of(Factorisation(FullEmbedding(3, 2), items), 5).score
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
    def of(cls, model: Model, count: int) -> Alike:
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
        if isinstance(model, IdModel) and len(model.item_features):
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
