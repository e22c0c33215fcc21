"""Rows of their own for ids that have data enough."""

from __future__ import annotations

import copy

import torch

from celrec.data.interactions import Interactions
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.errors import CelrecError
from celrec.recommender.model import Model


def personalise(model: Model, log: Interactions, above: int = 0) -> Model:
    """A copy of `model` whose clustered tables are mixed ones, with the same predictions.

    Ids with more than `above` interactions in `log` leave their cluster with a copy
    of its row. To train such a model further keeps their rows near those copies,
    as the solvers' settings say.
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
    return table
