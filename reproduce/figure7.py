"""Figure 7: how scattered the rows of clusters are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError, DivergedError
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.cluster_diagnostics import ClusterDiagnostics
from celrec.offline.solver import ValidationRecord
from celrec.offline.training import OfflineTraining
from celrec.runtime.threads import flushed_denormals
from reproduce.drawing import drawing
from reproduce.experiment import Cell, Experiment
from reproduce.figure6 import SIZES
from reproduce.presence import is_present
from reproduce.report import Report, ResultTable
from reproduce.trial import Trial
from reproduce.trial_figure import QUICK

_LOOPS = {
    "paper": "to the letter",
    "descent": "tuned descent",
    "default": "least squares",
}
"""Presets, and what they are called here."""
LOOK_EVERY = {"paper": 20, "descent": 20, "default": 1}
_COLOURS = ("#fd8d3c", "#cc4c78", "#7e03a8", "#0d0887")  # darker as there are more rows
_STYLES = (":", "-.", "--", "-")
_NOTES = (
    "Outside of the central region is a row b with 1ᵀb < √(R − 1)·‖b‖, R its length: 64, with "
    "least squares 32. Rows that are scattered so that clusters are identifiable lie outside.",
    "The paper: in the end all rows lie outside, and sooner at larger ratios.",
    "To the letter: what the paper says (preset paper), 2,000 steps. Tuned descent: the best "
    "setting of its loop (preset descent), 4,000 steps. Least squares: the default here, 300 "
    "sweeps. All on the first fold, to the last step even where validation data would have ended "
    "training before.",
)


def outside_central(table: ClusteredEmbedding, log: Interactions) -> float:
    """The share of a table's rows, one for each active cluster, outside of the central region."""
    rows = table.weight[: table.num_rows]
    if not bool(rows.isfinite().all()):
        raise DivergedError("rows are infinite or NaN; lower the learning rate")
    # Without interactions: nothing else of the clusters is asked for.
    return ClusterDiagnostics.of(rows, table.assignment[:-1], log[:0]).outside_central


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel."""

    data: str
    preset: str
    ratio: str

    def trial(self, *, quick: bool) -> Trial:
        change = {"schedule.validate_every": LOOK_EVERY[self.preset], "schedule.patience": 10**6}
        plan = Plan(preset=self.preset, compression=SIZES[self.data][self.ratio])
        return Trial(self.data, plan, change=change, quick=quick)


class Figure7(Experiment):
    """The share of the rows outside of the central region while they are trained."""

    name = "figure7"
    title = "Figure 7: clusters outside of the central region, NMF"

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """One fold of each."""
        lines = [line for line in _lines(quick=quick) if is_present(line.data, known)]
        return [line.trial(quick=quick).cell() for line in lines]

    def run(self, cell: Cell) -> dict[str, Any]:
        """The number of rows and the share of them outside, at steps."""
        trial = Trial.of(cell)
        split = trial.split()
        model = make_model(split.train, trial.plan)
        table = model.tables["items"]
        if not isinstance(table, ClusteredEmbedding):
            raise CelrecError(f"cell: embedding {trial.plan.embedding!r} has no clusters")
        how = trial.changed(trial.plan.settings())
        training = OfflineTraining(model, split.train, split.valid, how)
        found: dict[str, Any] = {"steps": [], "rows": [], "outside": []}

        def look(record: ValidationRecord) -> None:
            found["outside"].append(outside_central(table, split.train))
            found["rows"].append(record.clusters)
            found["steps"].append(record.step)

        training.start()
        try:
            with flushed_denormals():
                training.run(look)
        except DivergedError as error:
            found["diverged"] = str(error)
        return found

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """Lines over steps, and when they reach half and all of the rows."""
        found = {}
        for line in _lines(quick=quick):
            one = known.get(line.trial(quick=quick).cell())
            if one is not None and one["steps"]:
                found[line] = one
        missing = sum(cell not in known for cell in self.cells(known, quick=quick))
        notes = (*_NOTES, QUICK) if quick else _NOTES
        tables = [_table(found)] if found else []
        figures = []
        if found:
            self._draw(found, folder)
            figures = [f"{self.name}.png"]
        return Report(self.title, tables, figures, notes, missing)

    def _draw(self, found: Mapping[Line, Mapping[str, Any]], folder: Path) -> None:
        logs = list(dict.fromkeys(line.data for line in found))
        with drawing(folder, self.name, 9, 1 + 2.6 * len(logs)) as figure:
            panels = figure.subplots(len(logs), len(_LOOPS), sharey=True, squeeze=False)
            labelled = {}
            for line, one in found.items():
                axes = panels[logs.index(line.data), list(_LOOPS).index(line.preset)]
                place = list(SIZES[line.data]).index(line.ratio)
                (labelled[place],) = axes.plot(
                    one["steps"],
                    [100 * share for share in one["outside"]],
                    label=line.ratio,
                    color=_COLOURS[place],
                    linestyle=_STYLES[place],
                )
            for data, of_log in zip(logs, panels, strict=True):
                of_log[0].set_ylabel("rows outside [%]")
                for told, axes in zip(_LOOPS.values(), of_log, strict=True):
                    axes.set_title(f"{data}, {told}")
                    axes.set_xlabel("step" if told != _LOOPS["default"] else "sweep")
                    axes.set_ylim(-3, 103)
            lines = [labelled[place] for place in sorted(labelled)]
            figure.legend(
                lines,
                [f"ratio {line.get_label()}" for line in lines],
                loc="outside upper center",
                ncols=len(lines),
            )


def _table(found: Mapping[Line, Mapping[str, Any]]) -> ResultTable:
    rows = [
        [
            line.data,
            _LOOPS[line.preset],
            line.ratio,
            f"{one['rows'][-1]:,}",
            f"{100 * one['outside'][-1]:.1f} %",
            _reached(one, 0.5),
            _reached(one, 1.0),
            f"{one['steps'][-1]:,}",
        ]
        for line, one in found.items()
    ]
    return ResultTable(
        ("", "", "ratio", "rows", "outside", "half from step", "all from step", "of steps"),
        rows,
        caption="Rows outside of the central region when training ends, and the first step from "
        "which on half of them, and all, are there:",
    )


def _reached(one: Mapping[str, Any], share: float) -> str:
    """The first step since which the share was never less."""
    first = None
    for step, outside in zip(reversed(one["steps"]), reversed(one["outside"]), strict=True):
        if outside < share:
            break
        first = step
    return "never" if first is None else f"{first:,}"


def _lines(*, quick: bool) -> list[Line]:
    logs = ("ml-100k",) if quick else tuple(SIZES)
    ratios = ("1 %", "5 %") if quick else tuple(SIZES["ml-1m"])
    return [Line(log, loop, ratio) for log in logs for loop in _LOOPS for ratio in ratios]


EXPERIMENTS = {"figure7": Figure7()}
