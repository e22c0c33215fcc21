"""Table 11: how often members are reassigned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from celrec.data.split import Split
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.metrics import mean_squared_error
from celrec.offline.fitting import Fit
from reproduce.ablations import DESCENT, ROWS, plain
from reproduce.experiment import Cell
from reproduce.report import Report
from reproduce.trial import Trial
from reproduce.trial_table import Entry, TrialTable

_PERIODS = (20, 40, 100)
_PERIOD = "schedule.reassign_every"
_TIMES = {20: 100, 40: 50, 100: 20}
_TRAINING = ", training"
_PAPER = {
    "0.5 %": ((0.7931, 0.7926, 0.7939), (0.7307, 0.7318, 0.7329)),
    "1 %": ((0.7867, 0.7858, 0.7860), (0.7071, 0.7179, 0.7187)),
}


class ReassignmentTable(TrialTable):
    """Errors on training data and the number of reassignments besides."""

    more = ("train", "reassignments")

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Trial`; with `train`, the MSE on all training data, and `reassignments`."""
        trial = Trial.of(cell)
        period = int(trial.value_of(_PERIOD))

        def more(fitted: Fit, split: Split) -> dict[str, Any]:
            log = split.train_and_valid()
            predicted = fitted.model.predict(log).numpy()
            return {
                "train": mean_squared_error(predicted, log.target),
                "reassignments": fitted.steps // period,
            }

        return trial.run(more)

    def measured(self, entry: Entry, found: Mapping[str, Any]) -> float:
        """On training data in the rows that say so."""
        if entry.row.endswith(_TRAINING):
            value: float = found["train"]
            return value
        return super().measured(entry, found)

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """With a table of the numbers of reassignments."""
        report = super().report(known, folder, quick=quick)
        entries = [e for e in self.present(known, quick=quick) if not e.row.endswith(_TRAINING)]
        told = {
            (entry.row, entry.column): self._times(entry, known, quick=quick) for entry in entries
        }
        times = replace(
            self.table(entries, told.__getitem__),
            caption="Reassignments up to the chosen step, median over folds [the paper's]:",
        )
        return replace(report, tables=[*report.tables, times])

    def _times(self, entry: Entry, known: CellFile, *, quick: bool) -> str:
        found = self.found(entry, known, quick=quick).values()
        times = [one["reassignments"] for one in found if "diverged" not in one]
        told = f"{np.median(times):,.0f}" if times else "–"
        return f"{told} [≈{_TIMES[int(entry.trial.value_of(_PERIOD))]}]"


def _entries(data: str, columns: Sequence[str] = ("0.5 %", "1 %")) -> list[Entry]:
    usual = plain(data, DESCENT)
    entries = []
    for column in columns:
        for end, numbers in zip(("", _TRAINING), _PAPER[column], strict=True):
            for period, number in zip(_PERIODS, numbers, strict=True):
                plan = replace(usual.plan, compression=ROWS[data][column])
                entries.append(
                    Entry(
                        f"t1 = {period}{end}",
                        f"{data} {column}",
                        replace(usual, plan=plan, change={_PERIOD: period}),
                        number if data == "ml-1m" else None,
                        usual,
                    )
                )
    return entries


EXPERIMENTS = {
    "table11": ReassignmentTable(
        "table11",
        "Table 11: frequency of reassignment on MovieLens-1m, NMF, test and training MSE",
        _entries("ml-1m"),
        quick=_entries("ml-100k"),
        reference="t1 = 40",
        notes=(
            "Every t1 steps of gradient descent, the paper's loop to the letter (preset `paper`), "
            "all members are reassigned. The strength of the penalties is chosen at 1 % with "
            "t1 = 40.",
            "Rows with `training` are errors on the training data. Validation data choose the "
            "number of steps, where the paper seems to take 2,000 always.",
        ),
    ),
}
