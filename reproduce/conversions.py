"""Conversions on very sparse data, learned online by all methods."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from celrec.config.offline import OfflineConfig
from celrec.config.plan import Plan
from celrec.data.datasets.library import load_dataset
from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.metrics import area_under_curve
from celrec.offline.fitting import Change, fit, validate
from reproduce.experiment import Cell, Experiment
from reproduce.fold_mean import FoldMean
from reproduce.planted_conversions import planted_conversions
from reproduce.presence import is_present
from reproduce.report import Report, ResultTable
from reproduce.widening import widened

RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The learning rates of every method are chosen among so many times the usual ones."""
FURTHER_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 30.0, 100.0, 300.0, 1000.0)
"""What is tried beyond these, one after the other, as long as the last one is the best."""
SEEDS = 5
PLANTED = "planted"
_POSITIVE = {"rent-the-runway": 10.0, "book-crossing": 8.0, PLANTED: 1.0}
_POSITIVE |= dict.fromkeys(("amazon-video-games", "amazon-electronics"), 4.0)
_COLD = 5
_OWN_ROW_ABOVE = "50"


@dataclass(frozen=True, slots=True)
class Line:
    """A method at one size: a line of the table."""

    data: str
    model: str
    method: str
    """`biases`, or an embedding; CEL-Lite's perhaps with a preset, or `personal`."""
    compression: str = "5%"
    rank: int = 8
    paper: float | None = None

    def tuned(self) -> Line:
        """Where its learning rate is chosen: at 5 %, but for data of its own."""
        return self if self.data == PLANTED else replace(self, compression="5%", paper=None)

    def cell(self) -> dict[str, Any]:
        """What all its cells say."""
        names = ("data", "model", "method", "rank", "compression")
        return {name: getattr(self, name) for name in names}

    def plan(self, rate: float, seed: int = 0) -> Plan:
        """What is trained."""
        embedding, _, preset = self.method.partition(" ")
        biases, lite, personal = (
            embedding == "biases",
            embedding == "cel-lite",
            preset == "personal",
        )
        return Plan(
            model=self.model,
            embedding="full" if biases else embedding,
            preset=("default" if personal else preset or "default") if lite else "online",
            personalise=_OWN_ROW_ABOVE if personal else "none",
            compression=self.compression,
            side="both",
            # One factor on either side is next to no factor, beside the biases.
            rank=1 if biases else self.rank,
            loss="cross-entropy",
            positive=_POSITIVE[self.data],
            features=False,
            rate=rate,
            seed=seed,
        )


class Conversions(Experiment):
    """AUC of conversions for several methods, users and items compressed, over seeds.

    Test pairs are those whose user and item both occur in training; cold ones are those of
    them of which one occurs at most five times. Each method's learning rate is chosen on
    validation data, and how many passes there are for each seed; then it is trained anew on
    all training data.
    """

    def __init__(
        self, name: str, title: str, lines: Sequence[Line], notes: Sequence[str] = ()
    ) -> None:
        self.name, self.title, self.lines, self._notes = name, title, lines, notes

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """Rates come first, then seed after seed; what is quick has one size only."""
        lines = self._present(known, quick=quick)
        if quick:
            return [self._seed(line, 1.0, 0, quick=True) for line in lines]
        choosing = [
            {**line.cell(), "rate": rate}
            for line in dict.fromkeys(line.tuned() for line in lines)
            for rate in _tried(line, known)
        ]
        rates = {line: self.rate(line, known) for line in lines}
        return choosing + [
            self._seed(line, rate, seed)
            for seed in range(SEEDS)
            for line, rate in rates.items()
            if rate is not None
        ]

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Experiment`."""
        names = ("data", "model", "method", "compression", "rank")
        line = Line(**{name: cell[name] for name in names})
        split = load_split(line.data)
        if "seed" not in cell:
            loss = validate(split, line.plan(cell["rate"]))
            return {"valid": loss if math.isfinite(loss) else None}
        plan = line.plan(cell["rate"], cell["seed"])
        return _measured(split, plan, _once if cell.get("quick") else lambda how: how)

    def rate(self, line: Line, known: CellFile) -> float | None:
        """The one with the lowest loss on validation data, None if not all are known."""
        tuned = line.tuned()
        return _best(tuned, _tried(tuned, known), known)

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """A table for each log and model."""
        del folder
        tables = []
        present = self._present(known, quick=quick)
        for data, model in dict.fromkeys((line.data, line.model) for line in present):
            lines = [one for one in present if (one.data, one.model) == (data, model)]
            rows = [self._row(line, known, quick=quick) for line in lines]
            paper = any(line.paper is not None for line in lines)
            caption = f"{data}, {model}: test AUC in per cent, mean ± standard error over seeds"
            caption += " [the paper's]" if paper else ""
            headers = ("", "size", "rank", "rows", "AUC", "cold", "table", "index", "training")
            tables.append(ResultTable((*headers, "rate", "passes"), rows, caption + ":"))
        here = {line.data for line in present}
        absent = dict.fromkeys(line.data for line in self.lines if line.data not in here)
        notes = [
            *self._notes,
            *([] if quick else [_search_space()]),
            *(f"{name} is not here: it is left out." for name in absent),
        ]
        missing = sum(cell not in known for cell in self.cells(known, quick=quick))
        return Report(self.title, tables, notes=notes, missing=missing)

    def _present(self, known: CellFile, *, quick: bool) -> list[Line]:
        """The lines whose data are here; what is quick has one size only."""
        return [
            line
            for line in self.lines
            if (line.data == PLANTED or is_present(line.data, known))
            and (not quick or line.compression == line.tuned().compression)
        ]

    def _seed(self, line: Line, rate: float, seed: int, *, quick: bool = False) -> Cell:
        cell = {**line.cell(), "rate": rate, "seed": seed}
        return {**cell, "quick": True} if quick else cell

    def _row(self, line: Line, known: CellFile, *, quick: bool) -> list[str]:
        rate = 1.0 if quick else self.rate(line, known)
        cells = [self._seed(line, rate, s, quick=quick) for s in range(SEEDS)] if rate else []
        found = [one for one in map(known.get, cells) if one is not None]
        whole = line.method in ("biases", "full")
        label = [line.method, "100%" if whole else line.compression, str(line.rank)]
        if not found:
            return [*label, *["–"] * 8]
        theirs = "" if line.paper is None else f" [{line.paper:.2f}]"
        middle = {
            name: f"{np.median([one[name] for one in found]):,.0f}"
            for name in ("table", "index", "training", "passes")
        }
        return [
            *label,
            " + ".join(f"{count:,}" for count in found[-1]["rows"]),
            _mean(found, "seen") + theirs,
            _mean(found, "cold"),
            *(middle[name] for name in ("table", "index", "training")),
            f"{rate:g}",
            middle["passes"],
        ]


@lru_cache(maxsize=1)  # a process works on several cells of the same log
def load_split(data: str) -> Split:
    """A data set with conversions as targets, split for tests."""
    plan = Line(data, "mf", "full").plan(1.0)
    log: Interactions = planted_conversions() if data == PLANTED else load_dataset(data)
    log = plan.prepared(log)
    return Split.chronological(log) if log.timestamp is not None else Split.random(log)


def _once(how: OfflineConfig) -> OfflineConfig:
    """One pass."""
    return replace(how, schedule=replace(how.schedule, steps=1))


def _measured(split: Split, plan: Plan, change: Change) -> dict[str, Any]:
    begun = time.process_time()
    fitted = fit(split, plan, change=change)
    seconds = time.process_time() - begun
    learned, test = split.train_and_valid(), split.test
    scores = fitted.model.predict(test).numpy()
    of_user, of_item = learned.user_counts[test.user], learned.item_counts[test.item]
    seen = (of_user > 0) & (of_item > 0)
    cold = seen & (np.minimum(of_user, of_item) <= _COLD)
    tables = fitted.model.whole_tables.values()
    memory = [table.memory() for table in tables]
    return {
        "seen": 100 * area_under_curve(scores[seen], test.target[seen]),
        "cold": 100 * area_under_curve(scores[cold], test.target[cold]),
        "valid": fitted.valid_loss,
        "passes": fitted.steps,
        "rows": [table.num_rows for table in tables],
        "table": sum(one.table for one in memory),
        "index": sum(one.index for one in memory),
        "training": sum(fitted.training_bytes.values()),
        "seconds": seconds,
    }


def _tried(line: Line, known: CellFile) -> Sequence[float]:
    """The rates that one is chosen among, as far as is known what to try."""
    return widened(RATES, FURTHER_RATES, lambda rates: _best(line, rates, known))


def _best(line: Line, rates: Sequence[float], known: CellFile) -> float | None:
    """The rate with the lowest loss on validation data, None if not all are known."""
    found = {rate: known.get({**line.cell(), "rate": rate}) for rate in rates}
    losses = {rate: one["valid"] for rate, one in found.items() if one is not None}
    if len(losses) < len(rates):
        return None
    return min(rates, key=lambda rate: math.inf if losses[rate] is None else losses[rate])


def _search_space() -> str:
    usual, further = (
        ", ".join(f"{rate:g}" for rate in rates) for rates in (RATES, sorted(FURTHER_RATES))
    )
    return (
        "Rates are relative to the usual ones, chosen on validation data (at 5 % where there are "
        f"several sizes) among {usual}, and beyond these ({further}) as long as the last one was "
        "the best. Passes are as many as validation data chose for each seed; medians are shown, "
        "of bytes too."
    )


def _mean(found: Sequence[dict[str, Any]], name: str) -> str:
    return FoldMean.of(one[name] for one in found).told(2, of=SEEDS, unit="seed")
