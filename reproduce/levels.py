"""Clusters and levels compressed from a full fit, one fit a fold for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.data.datasets.library import load_dataset
from celrec.data.split import Split
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.metrics import mean_squared_error
from celrec.offline.compression import Compression
from celrec.offline.fitting import fit
from reproduce.experiment import Cell, Experiment
from reproduce.fold_mean import FoldMean
from reproduce.report import Report, ResultTable

_FOLDS = 5
_NAMES = {"nmf": "NMF", "mf": "with biases"}
_SIDES = {"items": "items", "both": "users and items"}


class Size(NamedTuple):
    """Tables of one size, and what they are called."""

    model: str
    rows: int | None
    """Of each compressed table, all levels together; None: a row for each id."""
    levels: int = 1
    side: str = "items"
    rank: int | None = None

    @property
    def plan(self) -> Plan:
        """What to fit."""
        if self.rows is None:
            return Plan("full", model=self.model, rank=self.rank)
        return Plan(
            "cel",
            str(self.rows),
            self.side,
            self.rank,
            model=self.model,
            levels=self.levels,
        )

    @property
    def words(self) -> list[str]:
        """Model, compressed tables, rows, and numbers in a row."""
        each = "" if self.rows is None else str(self.rows // self.levels)
        rows = "a row for each id" if self.rows is None else " + ".join([each] * self.levels)
        return [_NAMES[self.model], _SIDES[self.side], rows, str(self.plan.dim)]


def _sizes(rows: tuple[int, int, int], levels: tuple[Size, ...]) -> list[Size]:
    """Each model in full, and at the sizes of the paper's tables in one level and two."""
    found = []
    for model in _NAMES:
        found.append(Size(model, None))
        found += [Size(model, count, level) for level in (1, 2) for count in rows]
    return [*found, *levels]


_SIZES = {
    "ml-1m": _sizes(
        (200, 40, 20),
        (
            Size("mf", 400, 2),
            Size("mf", 768, 3),
            Size("mf", 768, 6, "both", 16),
            Size("mf", 1024, 4, "both", 16),
        ),
    ),
    "ml-100k": _sizes(
        (84, 17, 8), (Size("mf", 126, 3), Size("mf", 84, 2, "both"), Size("mf", 192, 6, "both", 16))
    ),
}


class Levels(Experiment):
    """Test errors of tables of many sizes, all compressed from the same full fit."""

    def __init__(self, data: str, title: str) -> None:
        self.name, self.data = f"levels-{data}", data
        self.title = f"Clusters and levels: {title}, test MSE"

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """One a fold."""
        del known
        return [{"data": self.data, "fold": fold} for fold in range(1, 2 if quick else _FOLDS + 1)]

    def run(self, cell: Cell) -> dict[str, Any]:
        """For each size `mse`, and the `bytes` of its compressed tables and of all `biases`."""
        split = Split.fold(load_dataset(cell["data"]), cell["fold"], of=_FOLDS)
        full = fit(split, Plan("full", model="mf")).model
        log = split.train_and_valid()
        found = {}
        for size in _SIZES[self.data]:
            model = make_model(log, size.plan)
            how = size.plan.settings().compression
            assert how is not None  # noqa: S101  (the presets say so)
            Compression(model, full, log.seen(), how, size.plan.seed).run()
            sides = ("users", "items") if size.side == "both" else ("items",)
            whole, beneath = model.whole_tables, model.tables
            tables = sum(beneath[side].memory().total for side in sides)
            found["/".join(size.words)] = {
                "mse": mean_squared_error(model.predict(split.test).numpy(), split.test.target),
                "bytes": tables,
                "biases": sum(whole[side].memory().total for side in sides) - tables,
            }
        return found

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """Means over folds, and how far each size is from the full tables of the same model."""
        del folder
        cells = self.cells(known, quick=quick)
        results = [found for cell in cells if (found := known.get(cell)) is not None]
        rows = []
        for size in _SIZES[self.data]:
            key = "/".join(size.words)
            whole = "/".join(Size(size.model, None).words)
            mine = [found[key] for found in results if key in found]
            apart = [
                found[key]["mse"] - found[whole]["mse"]
                for found in results
                if key in found and size.rows is not None
            ]
            rows.append(
                [
                    *size.words,
                    f"{mine[0]['bytes'] / 1000:,.1f}" if mine else "",
                    f"{mine[0]['biases'] / 1000:,.1f}" if mine else "",
                    FoldMean.of(one["mse"] for one in mine).told(4, of=_FOLDS),
                    FoldMean.of(apart).told(4, of=_FOLDS) if size.rows is not None else "",
                ]
            )
        headers = ("model", "compressed", "rows", "dim", "kB", "biases kB", "MSE", "above full")
        caption = "Mean ± standard error over five folds; kB of the compressed tables with index:"
        notes = (
            "One fit with a row for each id a fold, by Gibbs sampling with 32 factors; the number "
            "of sweeps is chosen on validation data. All sizes are compressed from it.",
            "NMF has no biases. Those of the other model are counted apart.",
        )
        missing = sum(cell not in known for cell in cells)
        return Report(
            self.title, [ResultTable(headers, rows, caption)], notes=notes, missing=missing
        )


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (Levels("ml-1m", "MovieLens-1m"), Levels("ml-100k", "MovieLens-100k"))
}
