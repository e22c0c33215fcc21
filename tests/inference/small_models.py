"""Small models of all kinds, and things to ask them."""

from dataclasses import replace

import numpy as np
import polars as pl
import torch

from celrec import Planted, read
from celrec.config import building
from celrec.config.building import make_model
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding

USERS, ITEMS, SHOPS, HISTORY = 9, 40, 5, 2
BATCHES = (1, 2, 7)


def small_log():
    """Ratings with shops, and features on both sides."""
    rows = Planted(600, USERS, ITEMS, dim=2, item_clusters=4).interactions().to_frame()
    return read(
        rows.with_columns(shop=pl.Series([f"shop {n % SHOPS}" for n in range(600)])),
        columns=["shop"],
        user_features=pl.DataFrame({"user": range(USERS), "city": [n % 3 for n in range(USERS)]}),
        item_features=pl.DataFrame({"item": range(ITEMS), "genres": [["a", "b"], ["c"]] * 20}),
    )


def with_levels(table, levels):
    """A table of sums of rows in the place of one of clusters."""
    if isinstance(table, BiasedEmbedding):
        table.rows = with_levels(table.rows, levels)
        return table
    if not isinstance(table, ClusteredEmbedding):
        return table
    ids, clusters = table.num_embeddings, table.max_clusters
    return LevelledEmbedding(ids, table.embedding_dim, max_clusters=clusters, levels=levels)


def small_model(log, plan, *, personalised=False, packed=False, levels=1):
    """A model whose numbers are random, and whose ids differ in all that they can."""
    if plan.factorised:
        log = replace(log, columns={})
    before, building.HISTORY_LENGTH = building.HISTORY_LENGTH, HISTORY
    try:
        model = make_model(log, plan)
    finally:
        building.HISTORY_LENGTH = before
    if levels > 1:
        model.replace_tables(lambda _, table: with_levels(table, levels))
    torch.manual_seed(1)
    with torch.no_grad():
        for table in model.whole_tables.values():
            inner = table.rows if isinstance(table, BiasedEmbedding | QuantisedEmbedding) else table
            if isinstance(inner, PersonalEmbedding):
                inner.give(torch.arange(0, inner.num_embeddings, 3))
                inner = inner.shared
            if isinstance(inner, ClusteredEmbedding):
                inner.start_from(torch.arange(inner.num_embeddings) % inner.max_clusters)
                inner.unseen_cluster = inner.max_clusters - 1
            if isinstance(inner, LevelledEmbedding):
                for level in inner.clustered_levels:
                    clusters = torch.arange(level.max_clusters)
                    ids = torch.randint(len(clusters), (inner.num_embeddings,))
                    level.start_from(ids.index_copy(0, clusters, clusters))
                    level.unseen_cluster = len(clusters) - 1
            if isinstance(inner, PosteriorEmbedding):
                inner.evidence.random_(0, 60)
                inner.evidence[:, 0] = 255
        if personalised:
            warm = torch.arange(ITEMS) % 4 == 0
            if isinstance(model.items, BiasedEmbedding):
                model.items.rows = MixedEmbedding.personalise(model.items.rows, warm)
            else:
                model.items = MixedEmbedding.personalise(model.items, warm)
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
        model.model.set_mean(3.25)
    if packed:
        model.items.pack()
    if plan.network:
        model.remember(log)
    return model


def questions(scorer, batch, seed=0):
    """Ids of all kinds, by name: known ones, −1, and numbers beyond the end."""
    generator = torch.Generator().manual_seed(100 * seed + batch)
    ends = {"user": USERS, "item": ITEMS, "history": ITEMS, "columns": SHOPS}
    asked = {
        name: torch.randint(-1, ends[name] + 2, ids.shape, generator=generator)
        for name, ids in scorer.example(batch).items()
    }
    asked["user"][0] = -1
    asked["item"][-1] = ITEMS + 1000
    return asked


def events(log, rows=60):
    """A log whose ids are known or not."""
    rng = np.random.default_rng(0)

    def drawn(count):
        return rng.integers(-1, count, rows).astype(np.int32)

    return replace(
        log,
        user=drawn(USERS),
        item=drawn(ITEMS),
        target=np.zeros(rows, np.float32),
        timestamp=None,
        columns={
            name: replace(column, values=drawn(len(column.ids)))
            for name, column in log.columns.items()
        },
    )
