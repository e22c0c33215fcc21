"""What there is to say of ids."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.data.id_map import IdMap
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.training.model import Model

_CHUNK = 1 << 16


def id_tables(log: Interactions, model: Model) -> dict[str, pl.DataFrame]:
    """The `ids_table` of users, items and further columns, by the log that a model learned from.

    Those of items and users have titles where the log knows any.
    """
    rows = model.tables
    tables = {
        "users": _table_of(log, log.user_ids, log.user, rows["users"], log.user_features),
        "items": _table_of(log, log.item_ids, log.item, rows["items"], log.item_features),
    }
    for name, column in log.columns.items():
        if name in rows:
            tables[name] = _table_of(log, column.ids, column.values, rows[name])
    return tables


def ids_table(
    ids: pl.Series, counts: NDArray[np.int64], sums: NDArray[np.float64], table: Embedding
) -> pl.DataFrame:
    """Original ids in dense order, and what there is to say of each.

    Given how many interactions each has, and the sums of their targets.
    """
    columns = {
        "id": ids,
        "interactions": counts,
        "mean_target": np.where(counts > 0, sums / np.maximum(counts, 1), np.nan),
    }
    size = len(ids)
    if isinstance(table, PersonalEmbedding):
        columns["private"] = (table.own_of(torch.arange(size)) >= 0).numpy()
        table = table.shared
    if isinstance(table, ClusteredEmbedding):
        columns["cluster"] = table.assignment[:size].int().numpy()
    if isinstance(table, PosteriorEmbedding):
        starts = range(0, max(size, 1), _CHUNK)
        parts = [table.nearest(torch.arange(s, min(s + _CHUNK, size))) for s in starts]
        columns["cluster"] = torch.cat(parts).int().numpy()
    if isinstance(table, MixedEmbedding):
        columns["private"] = table.private(torch.arange(size)).numpy()
    return pl.DataFrame(columns)


def _table_of(
    log: Interactions,
    ids: IdMap,
    dense: NDArray[np.int32],
    table: Embedding,
    features: pl.DataFrame | None = None,
) -> pl.DataFrame:
    size, seen = min(len(ids), table.num_embeddings), dense >= 0
    counts = np.bincount(dense[seen], minlength=size)
    sums = np.bincount(dense[seen], log.target[seen], size).astype(np.float64)
    shown = ids_table(ids.ids[:size], counts, sums, table)
    if features is not None and "title" in features.columns:
        shown = shown.with_columns(title=features.get_column("title"))
    return shown
