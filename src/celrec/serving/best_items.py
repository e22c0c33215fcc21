"""The best items of a model for some users."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.data.seen_items import SeenItems
from celrec.serving.top_k import TopK
from celrec.training.model import Model


def best_items(
    model: Model,
    priority: NDArray[np.int64],
    users: NDArray[np.int64],
    k: int,
    seen: SeenItems,
) -> NDArray[np.int32]:
    """The k best items that each user has not seen: see `TopK`.

    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.training.factorisation import Factorisation
    >>> model = Factorisation(FullEmbedding(2, 2), FullEmbedding(3, 2))
    >>> best_items(model, np.zeros(3, np.int64), np.array([0, 1]), 2, SeenItems()).shape
    (2, 2)
    """
    return TopK(model, priority).recommend(users, k, seen=seen).items
