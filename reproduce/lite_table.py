"""What becomes of CEL-Lite where each id has one row, as in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from celrec.data.split import Split
from celrec.embeddings.posterior import IMPOSSIBLE, PosteriorEmbedding
from celrec.evaluation.comparison import measure
from celrec.offline.fitting import Fit
from reproduce.ablations import ROWS
from reproduce.experiment import Cell
from reproduce.trial import Trial, trial_plan
from reproduce.trial_table import Entry, TrialTable

MIXTURES, BEST_ROW, THEIRS = "Mixtures of rows", "The best row alone", "The paper's loop"
_PAPER = {"ml-100k": 0.8824, "ml-1m": 0.7901}
_RATES = (0.03, 0.1, 0.3, 1.0)


@torch.no_grad()
def keep_best_rows(table: PosteriorEmbedding) -> None:
    """Give each id its likeliest row alone; ids of which nothing is known stay as they are.

    >>> table = PosteriorEmbedding(2, 4, rows=3)
    >>> _ = table.evidence[0].copy_(torch.tensor([3, 0, 9]))
    >>> keep_best_rows(table)
    >>> table.weights(torch.tensor([0, 1])).tolist()
    [[0.0, 1.0, 0.0], [0.3333333432674408, 0.3333333432674408, 0.3333333432674408]]
    """
    known, of_unseen = table.evidence[:-1], table.evidence[-1]
    best = torch.full_like(known, IMPOSSIBLE).scatter_(1, known.argmin(1, keepdim=True), 0)
    nothing_known = (known == of_unseen).all(1, keepdim=True)
    known.copy_(torch.where(nothing_known, known, best))


class LiteTable(TrialTable):
    """CEL-Lite at 1 %, learned with mixtures and as the paper says."""

    more = ("best_row",)

    def __init__(self) -> None:
        super().__init__(
            "claims-lite",
            "CEL-Lite with mixtures of rows and with one row for each item (1 %, NMF, test MSE)",
            [entry for data in _PAPER for entry in _entries(data)],
            quick=_entries("ml-100k"),
            reference=MIXTURES,
            notes=(
                "CEL-Lite of this library keeps a byte for each pair of an item and a row, and an "
                "item's vector is a mixture. That of the paper keeps one row for each item: with "
                "the best row alone a mixture takes as little.",
                "The paper's loop is preset `paper`, to the letter. As it has no penalties, its "
                "rate is chosen, among as many values.",
            ),
        )

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Trial`; with the error of the `best_row` alone, None where there is no mixture."""
        trial = Trial.of(cell)

        def more(fitted: Fit, split: Split) -> dict[str, Any]:
            table = fitted.model.whole_tables["items"]
            if not isinstance(table, PosteriorEmbedding):
                return {"best_row": None}
            keep_best_rows(table)
            counts = split.train_and_valid().item_counts
            return {"best_row": measure(fitted.model, trial.plan, split.test, counts)["mse"]}

        return trial.run(more)

    def measured(self, entry: Entry, found: Mapping[str, Any]) -> float:
        """With mixtures or with the best row, as the row of the table says."""
        if entry.row == BEST_ROW:
            return float(found["best_row"])
        return super().measured(entry, found)


def _entries(data: str) -> list[Entry]:
    mixtures = Trial(
        data, trial_plan(model="nmf", embedding="cel-lite", compression=ROWS[data]["1 %"])
    )
    theirs = replace(mixtures, plan=replace(mixtures.plan, preset="paper"))
    return [
        *(Entry(row, data, mixtures, None, mixtures) for row in (MIXTURES, BEST_ROW)),
        Entry(THEIRS, data, theirs, _PAPER[data], theirs, setting="plan.rate", values=_RATES),
    ]
