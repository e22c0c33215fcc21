"""The rows that an id is a mixture of."""

from __future__ import annotations

import torch

from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.training.model import Model


def row_weights(model: Model, side: str, number: int, *, least: float = 0.01) -> dict[int, float]:
    """The weight of each row for one id, the largest first, those of `least` and more.

    Empty where ids are not between rows.

    >>> from celrec.training.factorisation import Factorisation
    >>> from celrec.embeddings.full import FullEmbedding
    >>> row_weights(Factorisation(FullEmbedding(3, 2), FullEmbedding(4, 2)), "items", 0)
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
