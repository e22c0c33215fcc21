"""Table 8: methods that can be learned online on MovieLens-25m, items compressed."""

from __future__ import annotations

from reproduce.method_rows import METHODS, method_entries
from reproduce.trial_table import TrialTable

_PAPER = {
    "Vanilla": (0.8359,),
    "Modulo": (None, 1.0782, 1.1680, 1.2004),
    "PreHash K=M": (None, 0.9095, 0.9566, 1.0104),
    "CEL-Lite": (0.7508, 0.7809, 0.8119, 0.8404),
}
"""At 100 %, and at the sizes."""

EXPERIMENTS = {
    "table8": TrialTable(
        "table8",
        "Table 8: MovieLens-25m, NMF, test MSE",
        method_entries(
            "ml-25m",
            {"5 %": "2952", "1 %": "590", "0.5 %": "295"},
            _PAPER,
            [row for row in METHODS if row.label in _PAPER],
            model="nmf",
        ),
        reference="CEL-Lite",
        notes=("Under 100 %, CEL-Lite is personalised for items with more than 20 ratings.",),
    ),
}
