"""From a plan to an untrained recommender."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.config.online import OnlineConfig
from celrec.config.options import SIDES
from celrec.config.plan import LITE, Plan
from celrec.config.starts import starting_clusters
from celrec.data.features import EncodedFeature
from celrec.data.id_map import UNSEEN
from celrec.data.interactions import Interactions
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.description import (
    describe_embedding,
    make_embedding,
    smallest_description,
)
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.registry import Request, find_method
from celrec.errors import CelrecError
from celrec.models.interaction import Interaction
from celrec.models.losses import LOSSES, Loss, rating_and_conversion
from celrec.models.registry import FACTORISATIONS, MODELS
from celrec.recommender.feature_tables import FeatureTables
from celrec.recommender.model import Model
from celrec.runtime.memory_budget import MemoryBudget

_HISTORY = 20


def make_model(
    log: Interactions, plan: Plan, clusters: dict[str, NDArray[np.int64]] | None = None
) -> Model:
    """An untrained model for a plan, with given clusters for some of its tables."""
    if not plan.network:  # a factorisation reads no further columns, nor when it pretrains one
        log = replace(log, columns={})
    known = [
        EncodedFeature.all_of(table) if plan.features and plan.network else []
        for table in (log.user_features, log.item_features)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        model = _interaction(plan, sum(map(len, known)) + len(log.columns))
        # Least squares and full gradients fit a bias to each id, whether or not ids share rows.
        biased = plan.factorised and model.extra_columns > 0
        width = plan.dim if biased else plan.dim + model.extra_columns
        tables = _tables(log, plan, clusters or {}, width)
        if biased:
            tables = {name: BiasedEmbedding(table) for name, table in tables.items()}
        return _recommender(plan, model, tables, known, _HISTORY if model.uses_history else 0)


def describe_model(model: Model) -> dict[str, Any]:
    """What `rebuild_model` needs besides the plan and the state, as JSON values."""
    return {
        "tables": {side: describe_embedding(table) for side, table in model.whole_tables.items()},
        "features": {
            side: [list(shape) for shape in features.shapes]
            for side, features in (("users", model.user_features), ("items", model.item_features))
        },
        "history_length": model.history_length,
    }


def rebuild_model(
    plan: Plan, description: dict[str, Any], budget: MemoryBudget | None = None
) -> Model:
    """A model from its description, ready for a state, with tables in a memory `budget`."""
    tables: dict[str, Any] = {
        side: make_embedding(table if budget is None else smallest_description(table))
        for side, table in description["tables"].items()
    }
    if budget is not None:
        for table in tables.values():
            table.use_budget(budget)
    features = description.get("features", {})  # earlier versions left out what there was none of
    known = [
        [
            EncodedFeature("", np.full((ids, width), UNSEEN, np.int32), size)
            for size, ids, width in features.get(side, [])
        ]
        for side in ("users", "items")
    ]
    model = _interaction(plan, sum(map(len, known)) + len(tables) - 2)
    return _recommender(plan, model, tables, known, description.get("history_length", 0))


def _recommender(
    plan: Plan,
    model: Interaction,
    tables: dict[str, Embedding],
    known: list[list[EncodedFeature]],
    history_length: int,
) -> Model:
    width = plan.dim + model.extra_columns
    return Model(
        tables.pop("users"),
        tables.pop("items"),
        model,
        *(FeatureTables(features, width) for features in known),
        columns=tables,
        history_length=history_length,
        loss=_loss(plan),
    )


def _interaction(plan: Plan, fields: int) -> Interaction:
    if plan.network:
        return MODELS[plan.model](plan.dim, fields)
    return FACTORISATIONS[plan.model]()


def _loss(plan: Plan) -> Loss:
    if plan.conversions and plan.positive is not None:
        return rating_and_conversion(plan.positive)
    return LOSSES[plan.loss]


def _tables(
    log: Interactions, plan: Plan, clusters: dict[str, NDArray[np.int64]], width: int
) -> dict[str, Embedding]:
    """A table for users, items and each further column of the log; the latter are compressed."""
    sizes = {"users": log.num_users, "items": log.num_items}
    if clash := sizes.keys() & log.columns.keys():
        raise CelrecError(f"columns: {clash.pop()!r} is the name of another table; rename it")
    sizes |= {name: max(len(column.ids), 1) for name, column in log.columns.items()}
    compressed = [*SIDES[plan.side], *[True] * len(log.columns)]
    tables: dict[str, Embedding] = {}
    for shared, (side, ids) in zip(compressed, sizes.items(), strict=True):
        if not shared:
            tables[side] = FullEmbedding(ids, width)
        elif plan.clustered:
            rows = _clustered(log, side, ids, plan, clusters.get(side), width)
            tables[side] = QuantisedEmbedding(rows) if plan.embedding == "cel-int8" else rows
        elif plan.embedding == LITE:
            tables[side] = _online(ids, plan, width)
        else:
            request = Request(log, side, ids, width, plan.rows(ids), plan.seed)
            tables[side] = find_method(plan.embedding).make(request)
    return tables


def _online(ids: int, plan: Plan, width: int) -> Embedding:
    how, rows = plan.settings().solver, plan.rows(ids)
    table: Embedding
    if isinstance(how, OnlineConfig) and how.assignment == "soft":
        table = PosteriorEmbedding(ids, width, rows=min(rows, how.most_rows))
    else:
        table = ClusteredEmbedding(ids, width, max_clusters=rows)
    return table if plan.personal_limit is None else PersonalEmbedding(table)


def _clustered(
    log: Interactions,
    side: str,
    ids: int,
    plan: Plan,
    given: NDArray[np.int64] | None,
    width: int,
) -> ClusteredEmbedding:
    if given is not None:
        start = given
    elif side in ("users", "items"):
        start = starting_clusters(plan.start, log, side, plan.seed)
    else:
        start = np.zeros(ids, np.int64)
    count = int(start.max()) + 1
    rows = plan.rows(ids)
    if plan.frozen or given is not None:
        rows = count
    if count > rows:
        raise CelrecError(
            f"start {plan.start!r} has {count} clusters of {side}, but compression "
            f"{plan.compression!r} allows {rows}; raise it"
        )
    table = ClusteredEmbedding(ids, width, max_clusters=rows)
    table.start_from(torch.from_numpy(start))
    return table
