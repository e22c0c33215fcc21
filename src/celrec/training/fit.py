"""From a plan and a split log to a trained recommender."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.modulo import ModuloEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.errors import CelrecError
from celrec.training.checkpoint import Checkpoint
from celrec.training.clusterings import starting_clusters
from celrec.training.denormals import flushed_denormals
from celrec.training.factorisation import Factorisation
from celrec.training.judgement import Judgement, Watcher
from celrec.training.merging import merge_alike
from celrec.training.offline import Offline, Schedule
from celrec.training.offline_training import OfflineTraining
from celrec.training.personalisation import personalise
from celrec.training.plan import LEAST_GAIN, SIDES, Plan


@dataclass(frozen=True, slots=True)
class Fit:
    """A trained recommender and how it came about."""

    model: Factorisation
    judgements: dict[str, list[Judgement]]
    """By stage: `choose`, and `personalise` if that was asked for."""
    chosen: dict[str, Judgement]
    """What validation data liked best in each stage."""
    growth: str | None = None
    """Why there are as many clusters as there are, where validation data chose that too."""

    @property
    def steps(self) -> int:
        """How many steps were chosen, all stages together."""
        return sum(judgement.step for judgement in self.chosen.values())

    @property
    def valid_loss(self) -> float | None:
        """The error on validation data at the end of the last stage, None without such data."""
        loss = list(self.chosen.values())[-1].valid_loss
        return None if math.isnan(loss) else loss


def fit(
    split: Split,
    plan: Plan,
    watch: Watcher = lambda _, __: None,
    checkpoint: Checkpoint | None = None,
) -> Fit:
    """Train on the training part and let the validation part choose, then train anew on both.

    Validation data choose the number of steps, with compression `auto` the clusters
    too, and the number of steps after personalisation. Without any, training takes
    all the steps of the preset.
    """
    if plan.auto and not len(split.valid):
        raise CelrecError(
            f"compression 'auto' needs validation data, and {len(split.train):,} training rows "
            "leave none; give a number of rows"
        )
    checkpoint, how, limit = checkpoint or Checkpoint(), plan.settings(), plan.personal_limit
    everything = split.train_and_valid()
    judgements, chosen = {}, {}
    clusters, growth = None, None
    with flushed_denormals():
        model = make_model(split.train, plan)
        training = OfflineTraining(model, split.train, split.valid, how)
        chosen["choose"] = checkpoint.run("choose", training, watch)
        judgements["choose"] = training.judgements
        if plan.auto:
            growth = _settle(model, split.valid, training)
            clusters = _clusters(model)
        if limit is not None:
            personal = personalise(model, split.train, limit)
            training = OfflineTraining(
                personal, split.train, split.valid, replace(how, schedule=how.personal)
            )
            chosen["personalise"] = checkpoint.run("personalise", training, watch, fresh=False)
            judgements["personalise"] = training.judgements

        model = make_model(everything, plan, clusters)
        steps = _exactly(how, how.schedule, chosen["choose"])
        training = OfflineTraining(model, everything, everything[:0], steps)
        checkpoint.run("train anew", training, watch)
        if limit is not None:
            model = personalise(model, everything, limit)
            steps = _exactly(how, how.personal, chosen["personalise"])
            training = OfflineTraining(model, everything, everything[:0], steps)
            checkpoint.run("personalise anew", training, watch, fresh=False)
    if not all(bool(value.isfinite().all()) for value in model.state_dict().values()):
        raise CelrecError(
            f"preset {plan.preset!r} diverged on these ratings; take preset 'default', "
            "or ratings on a smaller scale"
        )
    return Fit(model, judgements, chosen, growth)


def make_model(
    log: Interactions, plan: Plan, clusters: dict[str, NDArray[np.int64]] | None = None
) -> Factorisation:
    """Untrained tables as the plan asks for, or with given clusters for some sides."""
    tables: list[SharedRows] = []
    sizes = {"users": log.num_users, "items": log.num_items}
    for compressed, (side, ids) in zip(SIDES[plan.side], sizes.items(), strict=True):
        if not compressed or plan.embedding == "full":
            tables.append(FullEmbedding(ids, plan.dim))
        elif plan.embedding == "modulo":
            tables.append(ModuloEmbedding(ids, plan.dim, rows=plan.rows(ids), seed=plan.seed))
        else:
            given = (clusters or {}).get(side)
            tables.append(_clustered(log, side, ids, plan, given))
    if plan.model == "mf":
        return Factorisation(*map(BiasedEmbedding, tables))
    return Factorisation(*tables)


def _clustered(
    log: Interactions, side: str, ids: int, plan: Plan, given: NDArray[np.int64] | None
) -> ClusteredEmbedding:
    start = starting_clusters(plan.start, log, side, plan.seed) if given is None else given
    count = int(start.max()) + 1
    rows = plan.rows(ids)
    if plan.frozen or given is not None:
        rows = count
    if count > rows:
        raise CelrecError(
            f"start {plan.start!r} has {count} clusters of {side}, but compression "
            f"{plan.compression!r} allows {rows}; raise it"
        )
    table = ClusteredEmbedding(ids, plan.dim, max_clusters=rows)
    table.start_from(torch.from_numpy(start))
    return table


def _settle(model: Factorisation, valid: Interactions, training: OfflineTraining) -> str:
    """Merge clusters that came out alike; why there are as many as there are."""
    tried = " and ".join(
        f"{count:,} clusters of {side}" for side, count in (training.grown_to or {}).items()
    )
    left = " and ".join(f"{labels.max() + 1:,}" for labels in _clusters(model).values())
    best = training.best
    ended = best.step < training.judgements[-1].step
    end = "no longer lower than" if ended else f"lowest at the last of {best.step:,} steps,"
    reason = (
        f"up to {tried} were tried; validation error was {end} {best.valid_loss:.6g} with {left}"
    )
    tolerance = LEAST_GAIN * float(np.var(valid.target))
    merged = sum(merge_alike(model, valid, side, tolerance) for side in ("users", "items"))
    if merged:
        reason += f", of which {merged:,} could be merged with others without loss"
    return reason


def _clusters(model: Factorisation) -> dict[str, NDArray[np.int64]]:
    tables = (("users", model.user_rows), ("items", model.item_rows))
    return {
        side: table.assignment[:-1].long().numpy()
        for side, table in tables
        if isinstance(table, ClusteredEmbedding)
    }


def _exactly(how: Offline, schedule: Schedule, chosen: Judgement) -> Offline:
    """The same training for the number of steps that was chosen, with nobody to judge."""
    return replace(how, schedule=replace(schedule, steps=chosen.step, judge_every=chosen.step))
