"""Rows of their own for ids that have data enough."""

from __future__ import annotations

import copy

import torch

from celrec.data.interactions import Interactions
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.errors import CelrecError
from celrec.training.factorisation import Factorisation, Table


def personalise(model: Factorisation, log: Interactions, above: int = 0) -> Factorisation:
    """A copy of `model` whose clustered tables are mixed ones, with the same predictions.

    Ids with more than `above` interactions in `log` leave their cluster with a copy
    of its row. To train such a model further keeps their rows near those copies,
    as the solvers' settings say.
    """
    if above < 0:
        raise CelrecError(f"above must not be negative, not {above}")
    tables: list[Table] = []
    for table, counts in ((model.users, log.user_counts), (model.items, log.item_counts)):
        warm = torch.from_numpy(counts > above)
        if isinstance(table, BiasedEmbedding):
            mixed = BiasedEmbedding(_mixed(table.rows, warm))
            mixed.bias.data.copy_(table.bias.data)
            tables.append(mixed)
        else:
            tables.append(_mixed(table, warm))
    personal = Factorisation(*tables)
    personal.model.load_state_dict(model.model.state_dict())
    return personal


def _mixed(table: SharedRows, warm: torch.Tensor) -> SharedRows:
    if isinstance(table, ClusteredEmbedding):
        return MixedEmbedding.personalise(table, warm)
    return copy.deepcopy(table)
