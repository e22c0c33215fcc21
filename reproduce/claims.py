"""What the paper says of starts, full tables, principal components and empty clusters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from celrec.cel.split import NORMALISATIONS, Members, Splitter, eigenvalue_ratio
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.data.split import Split
from celrec.evaluation.cell_file import CellFile
from celrec.offline.factorisation_solver import DotProductEvidence
from celrec.offline.fitting import Fit
from celrec.offline.training import OfflineTraining
from celrec.recommender.model import Model
from celrec.runtime.threads import flushed_denormals
from reproduce.ablations import DESCENT, PRESETS, ROWS, SOLVERS_NOTE, plain, theirs
from reproduce.experiment import Cell, Experiment
from reproduce.lite_table import LiteTable
from reproduce.planted_recovery import PlantedRecovery
from reproduce.report import Report
from reproduce.training_time import TrainingTime
from reproduce.trial import Trial
from reproduce.trial_table import Entry, TrialTable

_STARTS = (1, 2, 5, 10)
_SIZES = ("5 %", "1 %")
_FULL, _PERSONAL = "Full table", "CEL"
_PAPER = {
    "ml-100k": {_FULL: 0.9283, _PERSONAL: 0.8602},
    "ml-1m": {_FULL: 0.8357, _PERSONAL: 0.7507},
}
"""Tables 7 and 2, with a row for each item."""
_EMPTY = "clusters that nobody would choose"
_RATIOS = {
    "λ₁/λ₂, gradients as they are": "none",
    "λ₁/λ₂, centred": "centre",
    "λ₁/λ₂, standardised": "z-score",
}
"""Rows of the table, and what is done to the gradients first."""


@torch.no_grad()
def left_empty(model: Model, split: Split) -> float:
    """The share of the clusters that would be empty if all items chose what fits them best."""
    evidence = DotProductEvidence(model, split.train_and_valid(), "items")
    active = evidence.interactions() > 0
    chosen = evidence.losses()[active].argmin(1)
    return 1 - len(np.unique(chosen.numpy())) / model.item_rows.num_rows


@dataclass(frozen=True, slots=True)
class _WatchedSplitter(Splitter):
    """Splits as ever, and keeps how much the first component stands out each time."""

    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def leaving(self, members: Members, generator: torch.Generator) -> Tensor:
        count, dim = members.gradients.shape
        if count > dim:  # of fewer, something always stands out
            for name in _RATIOS.values():
                normalised = NORMALISATIONS[name](members.gradients.double(), members.partition)
                self.ratios[name].append(eigenvalue_ratio(normalised, normalise=False))
        # Without arguments, super() does not find its way in a class with slots.
        return super(_WatchedSplitter, self).leaving(members, generator)


def ratios_at_splits(trial: Trial, steps: int, split: Split) -> dict[str, float]:
    """λ₁/λ₂ of the gradients of clusters that are split in so many steps, medians over splits."""
    how = trial.changed(trial.plan.settings())
    watched = _WatchedSplitter(
        how.splitter.method, how.splitter.normalisation, how.splitter.threshold
    )
    schedule = replace(how.schedule, steps=steps, validate_every=steps)
    log = split.train_and_valid()
    model = make_model(log, trial.plan)
    training = OfflineTraining(
        model, log, log[:0], replace(how, splitter=watched, schedule=schedule)
    )
    with flushed_denormals():
        training.start()
        training.run()
    return {name: float(np.median(watched.ratios[name])) for name in _RATIOS.values()}


class InsideTable(TrialTable):
    """What clusters are like, in the place of errors."""

    more = ("ratios", "empty")

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Trial`; with the eigenvalues' `ratios` and the share of clusters left `empty`."""
        trial = Trial.of(cell)

        def more(fitted: Fit, split: Split) -> dict[str, Any]:
            ratios = ratios_at_splits(trial, fitted.steps, split)
            return {"ratios": ratios, "empty": left_empty(fitted.model, split)}

        return trial.run(more)

    def measured(self, entry: Entry, found: Mapping[str, Any]) -> float:
        """What the row is about."""
        if entry.row == _EMPTY:
            return float(found["empty"])
        return float(found["ratios"][_RATIOS[entry.row]])

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """With another caption."""
        report = super().report(known, folder, quick=quick)
        caption = "Mean ± standard error over folds:"
        return replace(
            report, tables=[replace(report.tables[0], caption=caption), report.tables[-1]]
        )


def _starts(data: str) -> Iterator[Entry]:
    for solver in PRESETS:
        usual = plain(data, solver)
        for clusters in _STARTS:
            start = None if clusters == 1 else f"random:{clusters}"
            trial = replace(usual, plan=replace(usual.plan, start=start))
            yield Entry(f"M₀ = {clusters}, {solver}", data, trial, None, usual)


def _full(data: str) -> Iterator[Entry]:
    for solver, preset in PRESETS.items():
        plans = {
            _FULL: Plan(embedding="full", compression="100%", preset=preset),
            _PERSONAL: replace(plain(data, solver).plan, personalise="all"),
        }
        for row, plan in plans.items():
            trial, number = Trial(data, plan), theirs(solver, _PAPER[data][row])
            yield Entry(f"{row}, {solver}", data, trial, number, trial)


def _inside(data: str) -> Iterator[Entry]:
    usual = plain(data, DESCENT)
    for row in (*_RATIOS, _EMPTY):
        for size in _SIZES:
            plan = replace(usual.plan, compression=ROWS[data][size])
            yield Entry(row, f"{data} {size}", replace(usual, plan=plan), None, usual)


EXPERIMENTS: dict[str, Experiment] = {
    "claims-starts": TrialTable(
        "claims-starts",
        "Claim: up to ten clusters to start with make no difference (1 %, NMF, test MSE)",
        [*_starts("ml-100k"), *_starts("ml-1m")],
        quick=list(_starts("ml-100k")),
        reference="M₀ = 1",
        notes=(SOLVERS_NOTE, "With more than one cluster, members are put in them at random."),
    ),
    "claims-full": TrialTable(
        "claims-full",
        "Claim: personalised CEL is ahead of a full table (NMF, test MSE)",
        [*_full("ml-100k"), *_full("ml-1m")],
        quick=list(_full("ml-100k")),
        reference=_PERSONAL,
        notes=(
            "Gradient descent is the paper's loop to the letter (preset `paper`), and the paper's "
            "numbers, of Tables 7 and 2, stand beside it; least squares is the preset "
            "`least-squares` of this library. The strength of the penalties is chosen for each row "
            "and log.",
            "CEL has 1 % of the rows, and is then personalised: each item has its own row.",
        ),
    ),
    "claims-inside": InsideTable(
        "claims-inside",
        "Claims: one component stands out; no cluster is left empty (NMF, the paper's loop)",
        [*_inside("ml-100k"), *_inside("ml-1m")],
        quick=list(_inside("ml-100k")),
        notes=(
            "λ₁/λ₂: the largest eigenvalue of the gradients of a cluster's members over the "
            "second, when it is split, median over splits of clusters with more members than a row "
            "has numbers. The paper says that it is usually about 100, and not what is done to the "
            "gradients before: its loop here standardises them.",
            "Clusters that nobody would choose: their share, if all items moved to the cluster "
            "that fits their training ratings best. The paper keeps clusters from becoming empty, "
            "and says that this helps.",
        ),
    ),
    "claims-lite": LiteTable(),
    "claims-planted": PlantedRecovery(),
    "claims-time": TrainingTime(),
}
