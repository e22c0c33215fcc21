"""The offline loop of CEL: descend, split, re-form, and stop when validation says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from celrec.clustering.clusterer import Clusterer, Move
from celrec.clustering.reassignment import Reassignment
from celrec.clustering.splitter import Splitter
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError
from celrec.training.dot_product_evidence import DotProductEvidence
from celrec.training.factorisation import Factorisation
from celrec.training.gradient_descent import Descent, GradientDescent


@dataclass(frozen=True, slots=True)
class Schedule:
    """When clusters split and re-form, and when training ends.

    Members are reassigned every `reassign_every` steps up to step `reassign_until`
    (0: to the end). Training runs for `steps` steps and is judged on validation
    data every `judge_every`; it ends early after `patience` judgements without a
    new best one, once all splits are done.
    """

    steps: int = 2000
    split_every: int = 10
    reassign_every: int = 40
    reassign_until: int = 0
    judge_every: int = 50
    patience: int = 10

    def __post_init__(self) -> None:
        for name in ("steps", "judge_every", "patience"):
            if getattr(self, name) < 1:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Offline:
    """All that offline training of CEL on a dot product can be told."""

    descent: Descent = field(default_factory=Descent)
    schedule: Schedule = field(default_factory=Schedule)
    splitter: Splitter = field(default_factory=Splitter)
    reassignment: Reassignment = field(default_factory=Reassignment)
    criterion: str = "interactions"
    per_row_start: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """How training stood after some step."""

    step: int
    clusters: int
    train_loss: float
    """The mean squared error on the training data, before the step."""
    valid_loss: float
    moved: int
    """Ids that changed their cluster since the last judgement."""


Watcher: TypeAlias = Callable[[Judgement], None]


def train_offline(
    model: Factorisation,
    train: Interactions,
    valid: Interactions,
    how: Offline,
    watch: Watcher | None = None,
) -> list[Judgement]:
    """Train `model` in place and leave it as it was when validation data liked it best.

    Tables that are clustered grow to their `max_clusters`; others are plain.
    """
    model.initialise(torch.Generator().manual_seed(how.seed), per_row=how.per_row_start)
    solver = GradientDescent(model, train, how.descent)
    clusterers = _clusterers(model, train, solver, how)
    best, best_state = float("inf"), model.state_dict()
    judgements: list[Judgement] = []
    moved, since_best = 0, 0
    for step in range(1, how.schedule.steps + 1):
        loss = solver.step()
        for clusterer in clusterers:
            moved += _moved(clusterer.step())
            if step == how.schedule.reassign_until:
                clusterer.reassign_every = 0
        if step % how.schedule.judge_every and step != how.schedule.steps:
            continue
        judgement = Judgement(
            step, model.items.num_rows, loss / len(train), _error(model, valid), moved
        )
        judgements.append(judgement)
        if watch:
            watch(judgement)
        moved, since_best = 0, since_best + 1
        if judgement.valid_loss < best or not len(valid):  # without a judge the latest is best
            best, best_state, since_best = (
                judgement.valid_loss,
                copy.deepcopy(model.state_dict()),
                0,
            )
        elif since_best >= how.schedule.patience and all(map(_is_full, clusterers)):
            break
    model.load_state_dict(best_state)
    return judgements


def refit_offline(model: Factorisation, train: Interactions, how: Offline, steps: int) -> None:
    """Train `model` from the start for a number of steps that was chosen before."""
    schedule = replace(how.schedule, steps=steps, judge_every=steps)
    train_offline(model, train, train, replace(how, schedule=schedule))


def _clusterers(
    model: Factorisation, train: Interactions, solver: GradientDescent, how: Offline
) -> list[Clusterer]:
    return [
        Clusterer(
            table,
            solver.optimizer,
            DotProductEvidence(model, train, side),
            split_every=how.schedule.split_every,
            reassign_every=how.schedule.reassign_every,
            criterion=how.criterion,
            splitter=how.splitter,
            reassignment=how.reassignment,
            seed=how.seed,
        )
        for side, table in (("users", model.users), ("items", model.items))
        if isinstance(table, ClusteredEmbedding)
    ]


def _is_full(clusterer: Clusterer) -> bool:
    return clusterer.table.num_clusters >= clusterer.max_clusters


def _moved(moves: list[Move]) -> int:
    return sum(move.moved for move in moves)


def _error(model: Factorisation, log: Interactions) -> float:
    target = torch.tensor(log.target)
    return float((model.predict(log) - target).square().mean()) if len(log) else float("nan")
