"""A model for questions: what can be computed once is."""

from __future__ import annotations

from copy import copy

from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.training.model import Model
from celrec.training.written_out import WrittenOut


def with_written_items(model: Model) -> Model:
    """The model with a vector for each item, where those are computed from several rows.

    It predicts the same, and shares all else with the model. Where an item has one row, perhaps the
    same as others, that is quicker as it is, and the model is given back.

    >>> import torch
    >>> from celrec.embeddings.posterior import PosteriorEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.training.factorisation import Factorisation
    >>> slow = Factorisation(FullEmbedding(4, 2), PosteriorEmbedding(5, 2, rows=3))
    >>> quick = with_written_items(slow)
    >>> type(quick.items).__name__, type(slow.items).__name__
    ('WrittenOut', 'PosteriorEmbedding')
    >>> torch.equal(quick.items(torch.tensor([3, -1])), slow.items(torch.tensor([3, -1])))
    True
    """
    if isinstance(_beneath(model.items), SharedRows):
        return model
    quick = copy(model)
    quick._modules = dict(model._modules)  # the copy has the same dictionary
    quick.items = WrittenOut(model.items)
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
