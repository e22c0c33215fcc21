"""From a plan to an untrained model: tables, initial clusters, interaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.config.online import OnlineConfig
from celrec.config.options import SIDES
from celrec.config.plan import LITE, Plan
from celrec.data.id_map import UNSEEN
from celrec.data.interactions import EncodedFeature, Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.description import (
    describe_embedding,
    make_embedding,
    smallest_description,
)
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.registry import Request, find_method
from celrec.errors import CelrecError
from celrec.models.interaction import LOSSES, Interaction, Loss, rating_and_conversion
from celrec.models.registry import FACTORISATIONS, MODELS
from celrec.recommender.batch import FeatureTables
from celrec.recommender.model import Model
from celrec.runtime.memory_budget import MemoryBudget


def random_clusters(log: Interactions, side: str, count: int, seed: int) -> NDArray[np.int64]:
    """Every id in one of `count` clusters at random, none empty."""
    size = len(_counts(log, side))
    rng = np.random.default_rng(seed)
    clusters = rng.integers(count, size=size)
    clusters[rng.permutation(size)[:count]] = np.arange(min(count, size))
    return _numbered(clusters)


def rating_bins(log: Interactions, side: str, count: int, seed: int) -> NDArray[np.int64]:
    """`count` bins of ids by mean rating, of equal size; ids without ratings have the mean."""
    del seed
    log = log.seen()
    counts, ids = _counts(log, side), log.item if side == "items" else log.user
    sums = np.bincount(ids, log.target, len(counts))
    means = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / max(len(log), 1))
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(means, kind="stable")] = np.arange(len(counts))
    return _numbered(rank * count // len(counts))


def genres(log: Interactions, side: str, count: int, seed: int) -> NDArray[np.int64]:
    """A cluster for every first genre, and one for ids without."""
    del count, seed
    features = log.item_features if side == "items" else log.user_features
    if features is None or "genres" not in features.columns:
        raise CelrecError(f"the data have no genres of {side} to start from; start with 'one'")
    first = features.get_column("genres").list.first()
    return _numbered(first.fill_null("").rank("dense").to_numpy())


def run_clusters(log: Interactions, side: str, run: str | Path) -> NDArray[np.int64]:
    """The clusters of a trained run; unknown ids join its largest cluster."""
    try:
        table = pl.read_parquet(Path(run, f"{side}.parquet"))
        known = table.select("id", "cluster")
    except (OSError, pl.exceptions.PolarsError) as error:
        names = ", ".join(["one", *CLUSTERINGS])
        raise CelrecError(
            f"start must be one of {names} or a run folder with clustered {side}, not {str(run)!r}"
        ) from error
    ids = (log.item_ids if side == "items" else log.user_ids).ids
    largest = int(known.get_column("cluster").mode().min())  # type: ignore[arg-type]
    wanted = pl.DataFrame({"id": ids[: len(_counts(log, side))]})
    try:
        found = wanted.join(known, on="id", how="left", maintain_order="left")
    except pl.exceptions.PolarsError as error:
        raise CelrecError(f"start: the ids of {run} are of another kind than these") from error
    return _numbered(found.get_column("cluster").fill_null(largest).to_numpy())


CLUSTERINGS: dict[str, Callable[[Interactions, str, int, int], NDArray[np.int64]]] = {
    "random": random_clusters,
    "ratings": rating_bins,
    "genres": genres,
}
"""Clusterings by name, given a log, a side, a number of clusters and a seed."""


def _counts(log: Interactions, side: str) -> NDArray[np.int64]:
    return log.item_counts if side == "items" else log.user_counts


def _numbered(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = np.unique(labels, return_inverse=True)[1]
    return numbers


def starting_clusters(start: str, log: Interactions, side: str, seed: int) -> NDArray[np.int64]:
    """The initial clusters that `start` names.

    `one`: all ids in one cluster; `random:20` and `ratings:20`: in 20 of them;
    `genres`; else the folder of a run whose clusters are taken.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 1, 1], "item": [5, 6, 7], "rating": [1.0, 5.0, 2.0]})
    >>> starting_clusters("ratings:2", log, "items", seed=0)
    array([0, 1, 0])
    """
    name, _, number = start.partition(":")
    if start == "one":
        return np.zeros(len(_counts(log, side)), np.int64)
    if name not in CLUSTERINGS or (name == "genres" and number):
        return run_clusters(log, side, start)
    if name in ("random", "ratings") and not (number.isdecimal() and int(number) > 0):
        raise CelrecError(f"start needs a number of clusters, as in {name}:20, not {start!r}")
    # More clusters than ids would be empty.
    count = min(int(number or 0), len(_counts(log, side)))
    return CLUSTERINGS[name](log, side, count, seed)


HISTORY_LENGTH = 20


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
        return _recommender(plan, model, tables, known, HISTORY_LENGTH if model.uses_history else 0)


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
