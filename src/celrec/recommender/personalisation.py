"""Rows of their own for ids that have data enough."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch

from celrec.data.interactions import Interactions
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.errors import CelrecError
from celrec.recommender.id_model import IdModel
from celrec.recommender.model import Model

_M = TypeVar("_M", bound=Model)


def personalise(model: _M, log: Interactions, above: int = 0) -> _M:
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
    for side in ("users", "items"):
        table = getattr(personal, side)
        if isinstance(table, BiasedEmbedding):
            table.rows = _mixed(table.rows, warm[side])
        else:
            setattr(personal, side, _mixed(table, warm[side]))
    if isinstance(personal, IdModel):
        for number, name in enumerate(personal.column_names):
            mixed = _mixed(personal.whole_tables[name], warm[name])
            personal.column_tables[number] = mixed
    return personal


def _mixed(table: Embedding, warm: torch.Tensor) -> Embedding:
    if isinstance(table, QuantisedEmbedding) and isinstance(table.rows, ClusteredEmbedding):
        return QuantisedEmbedding(MixedEmbedding.personalise(table.rows, warm))
    if isinstance(table, ClusteredEmbedding):
        return MixedEmbedding.personalise(table, warm)
    return table
