"""Fitting a plan to a split of a log."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from celrec.config.building import make_model
from celrec.config.byte_budget import parse_budget
from celrec.config.offline import CLUSTERS, OfflineConfig
from celrec.config.plan import LEAST_GAIN, Plan
from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Traits
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError, DivergedError
from celrec.offline.budget import BudgetSearch, Choice
from celrec.offline.checkpoint import Checkpoint
from celrec.offline.compression import Compression
from celrec.offline.factorisation_solver import mean_squared_error
from celrec.offline.gibbs import GibbsSampling
from celrec.offline.least_squares import AlternatingLeastSquares
from celrec.offline.online_solver import OnlineDescent
from celrec.offline.packing import compressed
from celrec.offline.pretraining import take_over
from celrec.offline.solver import ValidationRecord, Watcher
from celrec.offline.training import OfflineTraining
from celrec.offline.warm_start import WarmFit, starts_warm, warmest, within
from celrec.online.trainer import OnlineTrainer
from celrec.recommender.clusters import (
    clusters_of,
    graft,
    merge_similar,
    personalise,
    trees_of,
)
from celrec.recommender.model import Model
from celrec.recommender.negatives import with_negatives
from celrec.runtime.communicator import LOCAL, Communicator
from celrec.runtime.threads import flushed_denormals


class Stage(NamedTuple):
    """What a part of training is called when validation data choose, and when it is done anew."""

    name: str
    anew: str


CHOOSE = Stage("choose", "train anew")
PERSONALISE = Stage("personalise", "personalise anew")
FINISH = Stage("finish", "finish anew")
COMPRESS = Stage("compress", "compress anew")


@dataclass(frozen=True, slots=True)
class Fit:
    """A trained recommender and how it came about."""

    model: Model
    validation_records: dict[str, list[ValidationRecord]]
    """By stage: `choose`, `compress` if tables are made of a full fit, `personalise` if that was
    asked for, and `finish` if a network goes on from a factorisation."""
    chosen: dict[str, ValidationRecord]
    """What validation data liked best in each stage."""
    training_bytes: dict[str, int]
    """What each table held while it was trained, or prepared if that was more."""
    traits: dict[str, Traits]
    """What each table promised while it was trained; what is left of it may promise more."""
    growth: str | None = None
    """Why there are as many clusters as there are, where validation data chose that too."""
    trainer: OnlineTrainer | None = None
    """What can go on with it online, where it was learned so."""

    @property
    def steps(self) -> int:
        """How many steps were chosen, all stages together."""
        return sum(record.step for record in self.chosen.values())

    @property
    def valid_loss(self) -> float | None:
        """The error on validation data at the end of the last stage, None without such data."""
        loss = list(self.chosen.values())[-1].valid_loss
        return None if math.isnan(loss) else loss


Change: TypeAlias = Callable[[OfflineConfig], OfflineConfig]
"""Makes other settings of those of a preset."""


def fit(
    split: Split,
    plan: Plan,
    watch: Watcher = lambda _, __: None,
    checkpoint: Checkpoint | None = None,
    change: Change = lambda how: how,
    communicator: Communicator = LOCAL,
) -> Fit:
    """Train with early stopping on the validation part, then train anew on both parts.

    Validation data choose the number of steps of each stage, and with compression `auto` the
    number of clusters. Without them, training takes all steps of the preset. `change` adapts
    settings that are not in a plan. All ranks of a `communicator` call this with equal arguments,
    and get equal models.
    """
    if plan.auto and not len(split.valid):
        raise CelrecError(
            f"compression 'auto' needs validation data, and {len(split.train):,} training rows "
            "leave none; give a number of rows"
        )
    plan.check(split.train)
    checkpoint = checkpoint or Checkpoint()
    if plan.negatives:
        split = with_negatives(split, plan.negatives, plan.seed)
    everything = split.train_and_valid()
    with flushed_denormals():
        how = (plan, change, checkpoint, watch)
        first = _Pass(*how, split.train, split.valid, communicator=communicator)
        first.run()
        second = _Pass(*how, everything, everything[:0], first, communicator=communicator)
        model = second.run()
    model.remember(everything)
    if not all(bool(value.isfinite().all()) for value in model.state_dict().values()):
        raise DivergedError(
            f"preset {plan.preset!r} diverged on these ratings; take preset 'default', "
            "or ratings on a smaller scale"
        )
    training_bytes = {
        side: max(table.memory(training=True).total, table.preparation_bytes)
        for side, table in model.whole_tables.items()
    }
    traits = {side: table.traits for side, table in model.whole_tables.items()}
    model.replace_tables(lambda _, table: table.settled())
    return Fit(
        *(model, first.validation_records, first.chosen, training_bytes, traits, first.growth),
        trainer=second.trainer,
    )


def validate(
    split: Split,
    plan: Plan,
    watch: Watcher = lambda _, __: None,
    change: Change = lambda how: how,
) -> float:
    """The lowest loss on validation data that training on the training part comes to."""
    if not len(split.valid):
        raise CelrecError(
            f"{len(split.train):,} training rows leave none to validate on; take more data"
        )
    plan.check(split.train)
    if plan.negatives:
        split = with_negatives(split, plan.negatives, plan.seed)
    with flushed_denormals():
        only = _Pass(plan, change, Checkpoint(), watch, split.train, split.valid)
        only.run()
    return list(only.chosen.values())[-1].valid_loss


class _Pass:
    """All stages of training: with validation data, which choose, or as an `earlier` one chose."""

    def __init__(
        self,
        plan: Plan,
        change: Change,
        checkpoint: Checkpoint,
        watch: Watcher,
        train: Interactions,
        valid: Interactions,
        earlier: _Pass | None = None,
        communicator: Communicator = LOCAL,
    ) -> None:
        self._plan, self._change, self._communicator = plan, change, communicator
        self._checkpoint, self._watch = checkpoint, watch
        self._train, self._valid, self._earlier = train, valid, earlier
        self.validation_records: dict[str, list[ValidationRecord]] = {}
        self.chosen: dict[str, ValidationRecord] = {}
        self.clusters: dict[str, NDArray[np.int64]] | None = None
        self._trees: dict[str, NDArray[np.int64]] = {}
        self.growth: str | None = None
        self.choice: Choice | None = None

    @property
    def trainer(self) -> OnlineTrainer | None:
        """What has trained online, if that is how it was."""
        return self._solver.trainer if isinstance(self._solver, OnlineDescent) else None

    def run(self) -> Model:
        """The model in the end."""
        plan = self._plan
        if plan.pretraining is None:
            return self._factorised(plan)
        learned = self._factorised(plan.pretraining)
        how = self._change(plan.settings())
        model = make_model(self._train, plan, clusters_of(learned))
        if how.takes_over == CLUSTERS:
            return self._with_clusters(model, learned, how)
        # That is what is pretrained, how, and what goes on from it.
        assert isinstance(self._solver, AlternatingLeastSquares)  # noqa: S101
        take_over(model, learned, self._solver.deviations(), plan.seed)
        self._stage(FINISH, model, how, fresh=False)
        model.deviations = {}
        return model

    def _factorised(self, plan: Plan) -> Model:
        """Trained as it is, or compressed from a full fit or from one of the warmest ids."""
        if plan.full_fit is None:
            return self._clustered(plan)
        if plan.budget is not None:
            return self._within_budget(plan, plan.full_fit)
        model, how = make_model(self._train, plan), self._change(plan.settings())
        assert how.compression is not None  # noqa: S101  (there is a full fit)
        warm = starts_warm(plan, self._train)
        train = warmest(self._train, model) if warm else self._train
        valid = within(self._valid, train) if warm else self._valid
        # More dimensions than are asked for pay where there is a row for each id.
        full = make_model(
            train, replace(plan.full_fit, rank=plan.dim if warm else plan.full_fit.dim)
        )
        solver = self._stage(CHOOSE, full, how, data=(train, valid)).solver
        assert isinstance(solver, GibbsSampling)  # noqa: S101  (as the preset says)
        if warm:
            WarmFit(model, full, train, self._train, solver.noise, how.compression, plan.seed).run()
        else:
            Compression(model, full, train.seen(), how.compression, plan.seed).run()
        for side, table in model.whole_tables.items():
            table.preparation_bytes = full.whole_tables[side].memory().total + solver.bytes(side)
        return self._compressed(model)

    def _within_budget(self, plan: Plan, whole: Plan) -> Model:
        """Packed tables of a full fit, as validation data choose or have chosen."""
        full, train = make_model(self._train, whole), self._train.seen()
        self._stage(CHOOSE, full, self._change(whole.settings()))
        if self._earlier is None:
            search = BudgetSearch(full, train, self._valid, whole.dim, plan.seed)
            budget = parse_budget(plan.budget or "", train.num_users + train.num_items)
            self.choice = search.best(budget, plan.embedding)
            self.growth = f"{self.choice.size:,} of {budget:,} bytes: {self.choice.candidate.text}"
        else:
            self.choice = self._earlier.choice
        assert self.choice is not None  # noqa: S101  (the first pass has chosen)
        return self._compressed(compressed(full, train, self.choice.candidate, plan.seed))

    def _compressed(self, model: Model) -> Model:
        """The model itself, with a record of its error."""
        before = self.validation_records[CHOOSE.name][-1]
        record = ValidationRecord(
            step=0,
            clusters=model.whole_tables["items"].num_rows,
            train_loss=before.train_loss,
            valid_loss=mean_squared_error(model, self._valid),
            moved=0,
            user_clusters=model.whole_tables["users"].num_rows,
        )
        self.chosen[COMPRESS.name] = record
        self.validation_records[COMPRESS.name] = [record]
        self._watch(COMPRESS.name if self._earlier is None else COMPRESS.anew, record)
        return model

    def _with_clusters(self, model: Model, learned: Model, how: OfflineConfig) -> Model:
        """Begin with nothing but clusters, which stay."""
        graft(model, trees_of(learned))
        for side in clusters_of(learned):
            table, before = model.tables[side], learned.tables[side]
            assert isinstance(table, ClusteredEmbedding)  # noqa: S101  (they were given)
            assert isinstance(before, ClusteredEmbedding)  # noqa: S101
            table.unseen_cluster = before.unseen_cluster
            model.frozen_columns[side] = 0
        for side, before in learned.tables.items():
            table = model.tables[side]
            if isinstance(table, LevelledEmbedding) and isinstance(before, LevelledEmbedding):
                table.start_from(before)
        self._stage(FINISH, model, how)
        return self._personalised(model, how, self._plan)

    def _personalised(self, model: Model, how: OfflineConfig, plan: Plan) -> Model:
        """With rows of their own for those that the plan says."""
        limit = plan.personal_limit
        if limit is None or plan.online:  # where ids have got their rows on the way
            return model
        model = personalise(model, self._train, limit)
        self._stage(PERSONALISE, model, replace(how, schedule=how.personal), fresh=False)
        return model

    def _clustered(self, plan: Plan) -> Model:
        """Clusters, and rows of their own for those that the plan says."""
        how = self._change(plan.settings())
        given = None if self._earlier is None else self._earlier.clusters
        model = make_model(self._train, plan, given)
        if self._earlier is not None:
            graft(model, self._earlier._trees)
        training = self._stage(CHOOSE, model, how)
        if plan.auto and self._earlier is None:
            self.growth = _settle(model, self._valid, training)
            self.clusters = clusters_of(model)
            self._trees = trees_of(model)
        return self._personalised(model, how, plan)

    def _stage(
        self,
        stage: Stage,
        model: Model,
        how: OfflineConfig,
        *,
        fresh: bool = True,
        data: tuple[Interactions, Interactions] | None = None,
    ) -> OfflineTraining:
        """Train on all data, or on these: training and validation data."""
        if self._earlier is not None:  # the number of steps that was chosen, with nobody to judge
            steps = self._earlier.chosen[stage.name].step
            how = replace(how, schedule=replace(how.schedule, steps=steps, validate_every=steps))
        train, valid = data or (self._train, self._valid)
        training = OfflineTraining(model, train, valid, how, self._communicator)
        name = stage.name if self._earlier is None else stage.anew
        self.chosen[stage.name] = self._checkpoint.run(name, training, self._watch, fresh=fresh)
        self.validation_records[stage.name] = training.validation_records
        self._solver = training.solver
        return training


def _settle(model: Model, valid: Interactions, training: OfflineTraining) -> str:
    """Merge clusters that came out alike; why there are as many as there are."""
    tried = " and ".join(
        f"{count:,} clusters of {side}" for side, count in (training.grown_to or {}).items()
    )
    left = " and ".join(f"{labels.max() + 1:,}" for labels in clusters_of(model).values())
    best = training.best
    ended = best.step < training.validation_records[-1].step
    end = "no longer lower than" if ended else f"lowest at the last of {best.step:,} steps,"
    reason = (
        f"up to {tried} were tried; validation error was {end} {best.valid_loss:.6g} with {left}"
    )
    tolerance = LEAST_GAIN * float(np.var(valid.target))
    merged = 0
    if model.factorised and not training.solver.moves_clusters:
        merged = sum(merge_similar(model, valid, side, tolerance) for side in ("users", "items"))
    if merged:
        reason += f", of which {merged:,} could be merged with others without loss"
    return reason
