"""Table 14: optimisers."""

from __future__ import annotations

from reproduce.table13 import optimiser_entry
from reproduce.trial_table import TrialTable

_PAPER = {"GD": 0.8654, "Adam": 0.8720, "AdaGrad": 0.9160, "RMSProp": 0.8754}

EXPERIMENTS = {
    "table14": TrialTable(
        "table14",
        "Table 14: optimisers on MovieLens-100k at 2 %, NMF, test MSE",
        [
            optimiser_entry(row, "2 %", row.lower(), paper, average=True)
            for row, paper in _PAPER.items()
        ],
        reference="GD",
        notes=(
            "The paper's loop to the letter (preset `paper`), with averaged gradients, but for the "
            "learning rate, which is chosen on validation data for each optimiser. They judge when "
            "all clusters are there, and then again after as many steps.",
        ),
    ),
}
