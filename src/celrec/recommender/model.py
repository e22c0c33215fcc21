"""All that can be trained."""

from __future__ import annotations

from typing import TypeAlias

from celrec.embeddings.embedding import SharedRows
from celrec.errors import CelrecError
from celrec.recommender.factorisation import Factorisation
from celrec.recommender.id_model import IdModel

Model: TypeAlias = Factorisation | IdModel
"""Both have `tables`, `user_rows`, `item_rows` and `predict`."""


def item_rows_of(model: Model) -> SharedRows:
    """The table of the items, where each of them has a row, perhaps the same as others."""
    table = model.item_rows
    if not isinstance(table, SharedRows):
        raise CelrecError(f"model: its items have no rows, but a {type(table).__name__}")
    return table
