"""Networks that go on from a factorisation: its rows, clusters and predictions."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from celrec.embeddings.description import describe_embedding, make_embedding
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.recommender.model import Model

_SPREAD = 0.05


@torch.no_grad()
def take_over(recommender: Model, learned: Model, deviations: dict[str, Tensor], seed: int) -> None:
    """Initialise a network with the rows, clusters and predictions of a factorisation.

    The rows of the factorisation become the first, frozen dimensions of the network's rows;
    others are drawn from N(0, 0.05²); scalars, features and further columns start at 0.

    The rows were fitted to the same ratings, so a network trained on them would trust them too
    much, and generalise worse than the rows alone. So in training rows are sampled with their
    `deviations`, and the network minimises the expected loss: a step of variational EM.
    """
    generator = torch.Generator().manual_seed(seed)
    model = recommender.model
    dims = model.begin_as_dot_product()
    for side, old in (("users", learned.user_rows), ("items", learned.item_rows)):
        table = _widened(old, recommender.tables[side].embedding_dim)
        table.weight[:, :dims] = old.weight
        table.weight[:, dims:].normal_(0, _SPREAD, generator=generator)
        if model.extra_columns:
            table.weight[:, -model.extra_columns :] = 0
        whole = recommender.whole_tables[side]
        quantised = isinstance(whole, QuantisedEmbedding)
        setattr(recommender, side, QuantisedEmbedding(table) if quantised else table)
        recommender.frozen_columns[side] = dims
    recommender.deviations = deviations
    for features in (recommender.user_features, recommender.item_features):
        for values in features.tables:
            values.zero_()
    for further in recommender.column_tables:
        further.weight.zero_()  # type: ignore[operator]


def _widened(table: SharedRows, width: int) -> SharedRows:
    """A table of the same kind whose ids share rows in the same way, with longer rows."""
    description = {**describe_embedding(table), "embedding_dim": width}
    wide = make_embedding(description)
    state = {name: copy.deepcopy(value) for name, value in table.state_dict().items()}
    wide.load_state_dict({**state, "weight": wide.state_dict()["weight"]})
    assert isinstance(wide, SharedRows)  # noqa: S101  (of the same kind)
    return wide
