"""Clusters that are left when some ids have got rows of their own."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.embeddings.mixed import MixedEmbedding
from celrec.training.model import Model


def left_clusters(model: Model, side: str) -> NDArray[np.int64] | None:
    """The shared row of each id of a personalised table, −1 for ids with one to themselves.

    None for tables of other kinds.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.training.factorisation import Factorisation
    >>> shared = ClusteredEmbedding(3, 2, max_clusters=2)
    >>> items = MixedEmbedding.personalise(shared, torch.tensor([True, False, False]))
    >>> left_clusters(Factorisation(FullEmbedding(3, 2), items), "items")
    array([-1,  0,  0])
    """
    table = model.tables[side]
    if not isinstance(table, MixedEmbedding):
        return None
    rows = table.row_of(torch.arange(table.num_embeddings))
    return torch.where(rows < table.shared_rows, rows, -1).numpy()
