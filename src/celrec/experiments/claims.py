"""What the paper says of starts, principal components and empty clusters without a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from celrec.data.split import Split
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.diagnose import diagnose
from celrec.experiments.ablations import DESCENT, PRESETS, ROWS, SOLVERS_NOTE, plain
from celrec.experiments.experiment import Cell, Experiment
from celrec.experiments.planted_recovery import PlantedRecovery
from celrec.experiments.report import Report
from celrec.experiments.training_time import TrainingTime
from celrec.experiments.trial import Trial
from celrec.experiments.trial_table import Entry, TrialTable
from celrec.training.dot_product_evidence import DotProductEvidence
from celrec.training.factorisation import Factorisation
from celrec.training.fit import Fit
from celrec.training.model import Model

_STARTS = (1, 2, 5, 10)
_SIZES = ("5 %", "1 %")
_RATIO, _EMPTY = "λ₁/λ₂", "clusters that nobody would choose"


@torch.no_grad()
def left_empty(model: Model, split: Split) -> float:
    """The share of the clusters that would be empty if all items chose what fits them best."""
    assert isinstance(model, Factorisation)  # noqa: S101  (the plans below have no network)
    evidence = DotProductEvidence(model, split.train_and_valid(), "items")
    active = evidence.interactions() > 0
    chosen = evidence.losses()[active].argmin(1)
    return 1 - len(np.unique(chosen.numpy())) / model.item_rows.num_rows


class InsideTable(TrialTable):
    """What clusters are like in the end, in the place of errors."""

    more = ("ratio", "empty")

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Trial`; with the eigenvalues' `ratio` and the share of clusters left `empty`."""

        def more(fitted: Fit, split: Split) -> dict[str, Any]:
            ratio = diagnose(fitted.model, split.train_and_valid())["eigenvalue_ratio"]
            return {"ratio": ratio, "empty": left_empty(fitted.model, split)}

        return Trial.of(cell).run(more)

    def measured(self, entry: Entry, found: Mapping[str, Any]) -> float:
        """What the row is about."""
        value = found["ratio" if entry.row.startswith(_RATIO) else "empty"]
        return np.nan if value is None else float(value)

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
            start = "one" if clusters == 1 else f"random:{clusters}"
            trial = replace(usual, plan=replace(usual.plan, start=start))
            yield Entry(f"M₀ = {clusters}, {solver}", data, trial, None, usual)


def _inside(data: str) -> Iterator[Entry]:
    usual = plain(data, DESCENT)
    for row in (_RATIO, _EMPTY):
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
    "claims-inside": InsideTable(
        "claims-inside",
        "Claims: one component stands out; no cluster is left empty (NMF, the paper's loop)",
        [*_inside("ml-100k"), *_inside("ml-1m")],
        quick=list(_inside("ml-100k")),
        notes=(
            "λ₁/λ₂: the largest eigenvalue of the gradients of a cluster's members over the "
            "second, median over clusters with more members than a row has numbers. The paper "
            "says that it is about 100.",
            "Clusters that nobody would choose: their share, if all items moved to the cluster "
            "that fits their training ratings best. The paper keeps clusters from becoming empty, "
            "and says that this helps.",
        ),
    ),
    "claims-planted": PlantedRecovery(),
    "claims-time": TrainingTime(),
}
