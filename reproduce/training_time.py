"""How the time of training grows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from celrec.config.building import make_model
from celrec.config.offline import DescentConfig, OfflineConfig, Schedule
from celrec.config.plan import Plan
from celrec.data.interactions import Interactions
from celrec.data.planted import Planted
from celrec.evaluation.cell_file import CellFile
from celrec.offline.training import OfflineTraining
from celrec.runtime.threads import flushed_denormals
from reproduce.experiment import Cell, Experiment
from reproduce.report import Report, ResultTable

STEPS, _REASSIGN_EVERY = 400, 40
_TURNS = 3
_USUAL = {"interactions": 400_000, "clusters": 100, "rank": 64}
_SWEPT = {
    "interactions": (100_000, 200_000, 400_000, 800_000, 1_600_000),
    "clusters": (25, 50, 100, 200, 400),
    "rank": (16, 32, 64, 128),
}
"""What is swept, with the others as usual."""
_USERS, _ITEMS = 6_000, 4_000  # about those of MovieLens-1m


class TrainingTime(Experiment):
    """Seconds of the paper's loop against interactions D, clusters M and the length R of a row.

    The theorem: E steps with M splits and a reassignment every t₁ steps take
    O((E + M + E·M/t₁)·D·R), so no more than in proportion to each of D, M and R.
    """

    name = "claims-time"
    title = "Claim: the time of CEL grows no faster than interactions, clusters and length of rows"
    timed = True

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """Turn after turn, so that what else happens on a machine meets all sizes alike."""
        del known
        sizes = [
            {**_USUAL, name: value}
            for name, values in _SWEPT.items()
            for value in (values[:2] if quick else values)
        ]
        different = list({tuple(size.values()): size for size in sizes}.values())
        turns = range(1 if quick else _TURNS)
        return [{**size, "turn": turn} for turn in turns for size in different]

    def run(self, cell: Cell) -> dict[str, Any]:
        """The `seconds` of 400 steps with a split in each, until there are all clusters."""
        _train(_log(10_000), clusters=4, rank=8)  # machine code is made when it is first called
        log = _log(cell["interactions"])
        begun = time.perf_counter()
        _train(log, cell["clusters"], cell["rank"])
        return {"seconds": time.perf_counter() - begun}

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """Medians over turns, and the slopes of their logarithms."""
        del folder
        cells = self.cells(known, quick=quick)
        rows = []
        for name, values in _SWEPT.items():
            medians = {value: _median({**_USUAL, name: value}, cells, known) for value in values}
            there = {value: seconds for value, seconds in medians.items() if seconds is not None}
            told = [f"{value:,}: {seconds:.2f}" for value, seconds in there.items()]
            rows.append([name, " · ".join(told) or "–", _slope(there)])
        caption = f"Seconds of {STEPS} steps, median over turns, with the others as usual:"
        usual = ", ".join(f"{value:,} {name}" for name, value in _USUAL.items())
        notes = (
            f"Usual: {usual}. Ratings by {_USERS:,} users of {_ITEMS:,} items; plain gradient "
            "descent, a split in every step until there are all clusters, all items reassigned "
            f"every {_REASSIGN_EVERY} steps.",
            "Slope: of the logarithm of seconds against that of the size, by least squares. The "
            "theorem allows 1. Steps are made from sums over pairs of users and clusters, so that "
            "they grow with users times clusters, and not with the interactions.",
        )
        missing = sum(cell not in known for cell in cells)
        table = ResultTable(("", "seconds", "slope"), rows, caption)
        return Report(self.title, [table], notes=notes, missing=missing)


def _log(interactions: int) -> Interactions:
    return Planted(interactions, _USERS, _ITEMS, item_clusters=50).interactions()


def _train(log: Interactions, clusters: int, rank: int) -> None:
    schedule = Schedule(
        steps=STEPS, split_every=1, reassign_every=_REASSIGN_EVERY, validate_every=STEPS
    )
    how = OfflineConfig(
        solver=DescentConfig(learning_rate=1e-4, l2=1.0, bounded=True), schedule=schedule
    )
    model = make_model(log, Plan(compression=str(clusters), rank=rank, preset="descent"))
    training = OfflineTraining(model, log, log[:0], how)
    with flushed_denormals():
        training.start()
        training.run()


def _median(size: Mapping[str, int], cells: Sequence[Cell], known: CellFile) -> float | None:
    found = [known.get(cell) for cell in cells if size.items() <= dict(cell).items()]
    seconds = [one["seconds"] for one in found if one is not None]
    return float(np.median(seconds)) if seconds else None


def _slope(seconds: Mapping[int, float]) -> str:
    if len(seconds) < 2:
        return "–"
    slope, _ = np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)
    return f"{slope:.2f}"
