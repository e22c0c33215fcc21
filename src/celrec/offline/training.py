"""The training loop, and the solver of a configuration."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.cel.clusterer import Clusterer
from celrec.cel.reassignment import join_unseen
from celrec.config.offline import (
    DescentConfig,
    LeastSquaresConfig,
    MinibatchConfig,
    OfflineConfig,
)
from celrec.config.online import OnlineConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError
from celrec.offline.gradient_descent import GradientDescent, TreeAdmm
from celrec.offline.least_squares import AlternatingLeastSquares
from celrec.offline.minibatch import MinibatchDescent
from celrec.offline.online_solver import OnlineDescent
from celrec.offline.posterior_clusters import PosteriorClusters
from celrec.offline.solver import Solver, ValidationRecord
from celrec.recommender.model import Model
from celrec.runtime.communicator import LOCAL, Communicator, Partition


class OfflineTraining:
    """Trains a model in place; early stopping restores the best state on validation data.

    Clustered tables grow to their `max_clusters`. Without validation data the last state stays.

    >>> import celrec
    >>> from celrec.recommender.model import Model
    >>> from celrec.config.offline import Schedule
    >>> from celrec.embeddings.full import FullEmbedding
    >>> split = celrec.Split.random(celrec.Planted(rows=3000, users=40, items=30).interactions())
    >>> items = celrec.ClusteredEmbedding(split.train.num_items, 8, max_clusters=4)
    >>> model = Model(FullEmbedding(split.train.num_users, 8), items)
    >>> how = OfflineConfig(schedule=Schedule(steps=60, validate_every=20))
    >>> training = OfflineTraining(model, split.train, split.valid, how)
    >>> training.start()
    >>> [record.clusters for record in training.run()]
    [3, 4, 4]
    """

    def __init__(
        self,
        model: Model,
        train: Interactions,
        valid: Interactions,
        how: OfflineConfig,
        communicator: Communicator = LOCAL,
    ) -> None:
        """All ranks of `communicator` pass the same arguments; the work is divided among them."""
        self.model, self.how, self._communicator = model, how, communicator
        self.validation_records: list[ValidationRecord] = []
        self.grown_to: dict[str, int] | None = None
        """The clusters of each clustered table when training ended, as in `items`."""
        self._schedule = how.schedule
        self._train, self._valid = train.seen(), valid
        self._solver = make_solver(how, model, self._train, self._communicator)
        self._clusterers = self._make_clusterers()
        self._strangers = {
            side: torch.from_numpy(self._counts(side) == 0) for side in self._clusterers
        }
        self._gain = how.schedule.least_gain * float(np.var(valid.target)) if len(valid) else 0.0
        self._step = self._moved = self._best = 0
        self._best_state = model.state_dict()
        self._best_solver: dict[str, Any] = {}

    def _counts(self, side: str) -> NDArray[np.int64]:
        """How many interactions each id of a side has."""
        log = self._train
        if side in log.columns:
            return log.columns[side].counts
        return log.user_counts if side == "users" else log.item_counts

    @property
    def solver(self) -> Solver:
        """In the end as it was when the model was best."""
        return self._solver

    @property
    def best(self) -> ValidationRecord:
        """The validation record of the best state, which training returns to at its end."""
        return self.validation_records[self._best]

    def start(self) -> None:
        """Give the model its first rows; without it, training goes on from those it has."""
        self._solver.start(self.how.seed)

    def run(
        self,
        watch: Callable[[ValidationRecord], None] = lambda _: None,
        save: Callable[[], None] = lambda: None,
    ) -> list[ValidationRecord]:
        """Train to the end; after each validation call `watch(record)`, then `save()`."""
        # The best state may have fewer clusters, so it does not show that training has ended.
        while self.grown_to is None and not self._finished():
            self._step += 1
            loss = self._solver.step()
            for side, clusterer in self._clusterers.items():
                moves = clusterer.step()
                self._moved += sum(move.moved for move in moves)
                if moves and bool(self._strangers[side].any()):
                    join_unseen(clusterer.table, self._strangers[side])
                if self._step == self._schedule.reassign_until:
                    clusterer.reassign_every = 0
            if self._validation_due():
                watch(self._validate(loss))
                save()
        if self.grown_to is None:
            self.grown_to = {side: c.table.num_clusters for side, c in self._clusterers.items()}
        self.model.load_state_dict(self._best_state)
        self._solver.load_state_dict(copy.deepcopy(self._best_solver))
        return self.validation_records

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of training depends on."""
        return {
            "model": self.model.state_dict(),
            "solver": self._solver.state_dict(),
            "clusterers": {side: c.state_dict() for side, c in self._clusterers.items()},
            "judgements": [astuple(record) for record in self.validation_records],
            "counters": (self._step, self._moved, self._best),
            "grown_to": self.grown_to,
            "data": self._fingerprint,
            "best_state": dict(self._best_state),
            "best_solver": self._best_solver,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave: to go on is then as never to have stopped."""
        if state["data"] != self._fingerprint:
            raise CelrecError("state: it comes from training on other data; give the same")
        self.model.load_state_dict(state["model"])
        self._solver.load_state_dict(state["solver"])
        for side, clusterer in self._clusterers.items():
            clusterer.load_state_dict(state["clusterers"][side])
        self.validation_records = [ValidationRecord(*values) for values in state["judgements"]]
        self._step, self._moved, self._best = state["counters"]
        self.grown_to = state["grown_to"]
        self._best_state, self._best_solver = state["best_state"], state["best_solver"]
        if 0 < self._schedule.reassign_until <= self._step:
            for clusterer in self._clusterers.values():
                clusterer.reassign_every = 0

    @cached_property
    def _fingerprint(self) -> int:
        """The CRC-32 of all interactions."""
        crc = 0
        for log in (self._train, self._valid):
            further = [column.values for column in log.columns.values()]
            times = [] if log.timestamp is None else [log.timestamp]
            for column in (log.user, log.item, log.target, *times, *further):
                crc = zlib.crc32(np.ascontiguousarray(column).data, crc)
        return crc

    def _validate(self, train_loss: float) -> ValidationRecord:
        self._solver.meet()
        self._communicator.check_equal("the model", self.model.state_dict().values())
        with self._solver.averaged():
            record = ValidationRecord(
                self._step,
                self.model.whole_tables["items"].num_rows,
                train_loss / max(len(self._train), 1),
                self._solver.loss(self._valid),
                self._moved,
                self.model.whole_tables["users"].num_rows,
            )
            self._moved = 0
            self.validation_records.append(record)
            better = record.valid_loss < self.best.valid_loss - self._gain
            if better or len(self.validation_records) == 1 or not len(self._valid):
                self._best = len(self.validation_records) - 1
                self._best_state = copy.deepcopy(self.model.state_dict())
                self._best_solver = copy.deepcopy(self._solver.state_dict())
        return record

    def _validation_due(self) -> bool:
        schedule = self._schedule
        due = self._step % schedule.validate_every == 0 and (
            schedule.validate_growing or self._grown()
        )
        return due or self._step == schedule.steps

    def _finished(self) -> bool:
        since_best = len(self.validation_records) - 1 - self._best
        tired = since_best >= self._schedule.patience
        may_stop = self._schedule.stop_growing or self._grown()
        return (tired and may_stop) or self._step >= self._schedule.steps

    def _grown(self) -> bool:
        return all(
            clusterer.table.num_clusters >= clusterer.max_clusters
            for clusterer in self._clusterers.values()
        )

    def _make_clusterers(self) -> dict[str, Clusterer]:
        how, solver = self.how, self._solver
        if solver.moves_clusters:
            return {}
        return {
            side: Clusterer(
                table,
                solver.optimizer,
                solver.evidence(side),
                split_every=how.schedule.split_every,
                growth=how.schedule.growth,
                reassign_every=how.schedule.reassign_every,
                criterion=how.criterion,
                splitter=how.splitter,
                reassignment=how.reassignment,
                seed=how.seed,
            )
            for side, table in self.model.tables.items()
            if isinstance(table, ClusteredEmbedding) and side not in self.model.frozen_columns
        }


def make_solver(
    config: OfflineConfig, model: Model, log: Interactions, communicator: Communicator = LOCAL
) -> Solver:
    """The solver that a configuration names; every rank passes the whole log."""
    how = config.solver
    if isinstance(how, MinibatchConfig):
        _check_single(model, communicator)
        return MinibatchDescent(model, log, how, config.seed, communicator)
    if not isinstance(how, OnlineConfig) and not model.factorised:
        raise CelrecError(
            f"solver: {type(how).__name__} is for matrix factorisations with squared error, "
            f"not for {type(model.model).__name__}; take MinibatchConfig or OnlineConfig"
        )
    if isinstance(how, DescentConfig):
        return GradientDescent(model, interactions_of_rank(log, communicator), how, communicator)
    if isinstance(how, LeastSquaresConfig):
        part = interactions_of_rank(log, communicator)
        clustered = any(isinstance(t, ClusteredEmbedding) for t in model.row_tables.values())
        by_quadratics = how.members == "posterior" and clustered
        solver = PosteriorClusters if by_quadratics else AlternatingLeastSquares
        return solver(model, part, how, communicator)
    if communicator.size > 1:
        raise CelrecError(
            f"{communicator.size} processes cannot train with {type(how).__name__}; "
            "train in one, or take a network, or model 'nmf' or 'mf' with embedding 'cel'"
        )
    if isinstance(how, OnlineConfig):
        return OnlineDescent(model, log, replace(how, seed=config.seed))
    return TreeAdmm(model, log, how, config.seed)


def interactions_of_rank(log: Interactions, communicator: Communicator) -> Interactions:
    """The interactions of this rank's users, a contiguous range; `log` has those of all ranks."""
    users = Partition.balanced(log.user_counts, communicator).mine
    if users == slice(0, log.num_users):
        return log
    return log[(log.user >= users.start) & (log.user < users.stop)]


def _check_single(model: Model, communicator: Communicator) -> None:
    """Refuse tables that would come to differ between ranks."""
    for name, table in model.whole_tables.items():
        if communicator.size > 1 and table.observes_lookups:
            raise CelrecError(
                f"{communicator.size} processes cannot train {type(table).__name__} of {name}, "
                "which looks at every sample; train in one, or take another embedding"
            )
