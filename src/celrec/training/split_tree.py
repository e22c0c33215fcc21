"""Which cluster came from which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.training.model import Model


def split_tree(model: Model, side: str) -> NDArray[np.int64] | None:
    """The cluster that each cluster of a side was split from, −1 for those of the start.

    None if there is no tree: ids are in no clusters, or between rows.

    >>> from celrec.training.factorisation import Factorisation
    >>> from celrec.embeddings.full import FullEmbedding
    >>> import torch
    >>> items = ClusteredEmbedding(5, 2, max_clusters=3)
    >>> items.split(0, torch.tensor([3, 4])), items.split(1, torch.tensor([4]))
    (1, 2)
    >>> model = Factorisation(FullEmbedding(3, 2), items)
    >>> split_tree(model, "items"), split_tree(model, "users")
    (array([-1,  0,  1]), None)
    """
    table = model.tables[side]
    if isinstance(table, PersonalEmbedding):
        table = table.shared
    if not isinstance(table, ClusteredEmbedding):
        return None
    return table.parent[: table.num_clusters].long().numpy()
