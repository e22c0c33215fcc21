"""Plain `nn.Embedding` and `nn.EmbeddingBag` in the place of clustered tables."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from celrec.cel.clusterizing import replace_module
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import ClusteredEmbeddingBag
from celrec.embeddings.embedding import Embedding
from celrec.errors import CelrecError

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def declusterize(model: Model) -> Model:
    """Replace clustered tables by `nn.Embedding` and `nn.EmbeddingBag`, in place; the model.

    Each id gets a row of its own, equal to the one that it shared, so predictions are the
    same; but a plain table raises for unseen ids. The parameter objects stay and only get
    more rows. An optimiser that has made steps has to be built anew.

    >>> model = nn.Sequential(ClusteredEmbedding(100, 4, max_clusters=3))
    >>> ids = torch.arange(100)
    >>> before = model(ids)
    >>> declusterize(model)
    Sequential(
      (0): Embedding(100, 4)
    )
    >>> bool((model(ids) == before).all())
    True
    """
    if isinstance(model, ClusteredEmbedding | ClusteredEmbeddingBag):
        raise CelrecError(
            f"model is a {type(model).__name__} itself, which cannot be replaced in place; "
            "put it in an nn.Sequential"
        )
    # A table within another table, or within a bag, is not replaced by itself.
    parts = {
        part
        for whole in model.modules()
        if isinstance(whole, Embedding | ClusteredEmbeddingBag)
        for part in whole.children()
    }
    for module in list(model.modules()):
        if isinstance(module, ClusteredEmbeddingBag):
            replace_module(model, module, _plain_bag(module))
        elif isinstance(module, ClusteredEmbedding) and module not in parts:
            replace_module(model, module, _plain(module))
    return model


def _plain(table: ClusteredEmbedding) -> nn.Embedding:
    plain = nn.Embedding(
        table.num_embeddings, table.embedding_dim, table.padding_idx, device="meta"
    )
    plain.weight = _spread(table)
    return plain


def _plain_bag(bags: ClusteredEmbeddingBag) -> nn.EmbeddingBag:
    table = bags.table
    plain = nn.EmbeddingBag(
        table.num_embeddings,
        table.embedding_dim,
        mode=bags.mode,
        include_last_offset=bags.include_last_offset,
        padding_idx=table.padding_idx,
        device="meta",
    )
    plain.weight = _spread(table)
    return plain


def _spread(table: ClusteredEmbedding) -> nn.Parameter:
    """The parameter of the table with a row for each id; the table keeps a copy of its rows."""
    parameter = table.weight
    vectors = table(torch.arange(table.num_embeddings, device=parameter.device))
    table.weight = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
    parameter.grad = None
    parameter.data = vectors.detach().clone()
    return parameter
