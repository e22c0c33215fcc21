"""From a plan or a config to an untrained online model and its trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from celrec.config.building import make_model
from celrec.config.online import OnlineConfig
from celrec.config.plan import Plan
from celrec.data.id_map import IdMap
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.errors import CelrecError
from celrec.online.hard_clusters import HardClusterTrainer
from celrec.online.latest_evidence import RecentEvents
from celrec.online.mixtures import MixtureTrainer
from celrec.online.plain_tables import ComposedTableTrainer, PersonalTableTrainer, RowTableTrainer
from celrec.online.table_trainer import TableTrainer
from celrec.online.trainer import OnlineTrainer
from celrec.recommender.model import Model
from celrec.runtime.memory_budget import MemoryBudget


def make_trainer(
    config: OnlineConfig, model: Model, budget: MemoryBudget | None = None
) -> OnlineTrainer:
    """A trainer of all tables of a model, with what is kept of ids in a memory `budget`."""
    tables = model.whole_tables
    sides: dict[str, TableTrainer] = {}
    for place, (name, whole) in enumerate(tables.items()):
        table, shared = whole, config.shared
        if isinstance(whole, PersonalEmbedding):
            rate = config.beside_own * shared.learning_rate
            table, shared = whole.shared, replace(shared, learning_rate=rate)
        if isinstance(table, PosteriorEmbedding):
            sides[name] = MixtureTrainer(
                name,
                table,
                shared,
                config.temperature,
                merge_within=config.moving.merge_within,
                seed=config.seed,
                budget=budget,
            )
        elif isinstance(table, ClusteredEmbedding):
            events = RecentEvents(
                config.moving.latest,
                place,
                len(tables),
                ids=table.num_embeddings,
                moments=config.replay or model.history_length > 0,
                conversions=model.loss.binary,
                budget=budget,
            )
            sides[name] = HardClusterTrainer(
                name,
                table,
                shared,
                config.moving,
                events,
                seed=config.seed,
                budget=budget,
            )
        elif isinstance(table, SharedRows) and not table.needs_gradients:
            sides[name] = RowTableTrainer(
                name, table, config.plain, spread=config.small, seed=config.seed, budget=budget
            )
        else:
            sides[name] = ComposedTableTrainer(name, table, config.plain)
        if isinstance(whole, PersonalEmbedding):
            sides[name] = PersonalTableTrainer(
                sides[name], whole, config.own, config.own_above, place, budget
            )
    return OnlineTrainer(model, sides, config.network_rate, replay=config.replay, budget=budget)


@torch.no_grad()
def initialise_tables(config: OnlineConfig, model: Model, mean: float) -> None:
    """Draw the first rows of all tables; `mean` is about the mean of the targets.

    Rows of a non-negative factorisation are such that predictions are about the mean.
    """
    generator = torch.Generator().manual_seed(config.seed)
    scalars = model.model.extra_columns
    for whole in model.whole_tables.values():
        table = whole.shared if isinstance(whole, PersonalEmbedding) else whole
        spread = config.spread if isinstance(table, PosteriorEmbedding) else config.small
        for weight in table.parameters():
            if not isinstance(table, PosteriorEmbedding | SharedRows):
                break  # they know best what to begin with
            if config.plain.non_negative:
                level = (max(mean, 0.0) / table.embedding_dim) ** 0.5
                weight.normal_(1, config.spread, generator=generator).abs_().mul_(level)
                continue
            weight.normal_(0, spread, generator=generator)
            if scalars and isinstance(table, PosteriorEmbedding):
                weight[:, -scalars:].normal_(0, config.scalars, generator=generator)
    model.model.set_mean(model.loss.output(mean))


def online_settings(plan: Plan) -> OnlineConfig:
    """How the plan has events learned; complains if it is not for a stream."""
    how = plan.settings().solver
    if not isinstance(how, OnlineConfig):
        raise CelrecError(
            f"embedding {plan.embedding!r} with preset {plan.preset!r} is learned from a log, not "
            "from a stream; take embedding 'cel-lite' or preset 'online'"
        )
    return replace(how, seed=plan.seed)


def stream_plan(plan: Plan, expected_ids: int | None = None) -> Plan:
    """The plan with a number of rows, as nobody knows how many ids there will be.

    >>> stream_plan(Plan(embedding="cel-lite", compression="1%"), expected_ids=2000).compression
    '20'
    """
    online_settings(plan)
    if not plan.compression.strip().endswith("%"):
        return replace(plan, compression=str(max(int(plan.compression), 1)))
    if expected_ids is None:
        raise CelrecError(
            f"compression {plan.compression!r} is a share of ids that are not known yet; give a "
            "number of rows, or how many ids are expected (expected_ids, --expected-ids)"
        )
    if expected_ids < 1:
        raise CelrecError(f"expected_ids must be positive, not {expected_ids}")
    return replace(plan, compression=str(plan.rows(expected_ids)))


def stream_model(plan: Plan, columns: Sequence[str]) -> Model:
    """An untrained model with tables as small as they may be, given what `stream_plan` gave.

    `columns` are the names of further columns of ids.
    """
    ids = int(plan.compression)
    more = {name: IdMap(np.arange(ids)) for name in columns}
    log = Interactions.without_rows(IdMap(), IdMap(), more, num_users=ids, num_items=ids)
    plan.check(log)
    model = make_model(log, plan)
    if any(type(table).grow is Embedding.grow for table in model.whole_tables.values()):
        raise CelrecError(
            f"embedding {plan.embedding!r} has to know all ids beforehand, and a stream brings "
            "new ones; take 'cel-lite'"
        )
    return model
