"""Table 10: where the scores of a cluster's members are cut."""

from __future__ import annotations

from dataclasses import replace

from reproduce.ablations import PRESETS, ROWS, SOLVERS_NOTE, plain, theirs
from reproduce.trial_table import Entry, TrialTable

_THRESHOLDS = {"δ = 0": "zero", "δ = median": "median", "δ that balances": "balanced"}
_PAPER = {"ml-100k": (0.8684, 0.8691, 0.8689), "ml-1m": (0.7795, 0.7807, 0.7808)}


def _entries(data: str) -> list[Entry]:
    entries = []
    for solver in PRESETS:
        usual = plain(data, solver)
        for (row, threshold), number in zip(_THRESHOLDS.items(), _PAPER[data], strict=True):
            trial = replace(
                usual,
                plan=replace(usual.plan, compression=ROWS[data]["2 %"]),
                change={"splitter.threshold": threshold},
            )
            entries.append(Entry(f"{row}, {solver}", data, trial, theirs(solver, number), usual))
    return entries


EXPERIMENTS = {
    "table10": TrialTable(
        "table10",
        "Table 10: thresholds of splits at 2 %, NMF, test MSE",
        [*_entries("ml-100k"), *_entries("ml-1m")],
        quick=_entries("ml-100k"),
        reference="δ = 0",
        notes=(
            SOLVERS_NOTE,
            "δ that balances: both parts have as equal numbers of ratings as a cut allows.",
        ),
    ),
}
