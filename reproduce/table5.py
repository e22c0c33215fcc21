"""Table 5: clusters by rule, and as a start for CEL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reproduce.ablations import plain
from reproduce.trial import Trial, trial_plan
from reproduce.trial_table import Entry, TrialTable

_PAPER = {
    "By genre": (1.0515, None, None),
    "By mean rating": (0.8397, 0.8390, 0.8380),
    "By genre, then CEL": (0.8066, 0.7859, 0.7776),
    "By mean rating, then CEL": (0.7959, 0.7892, 0.7833),
    "CEL": (0.7985, 0.7858, 0.7784),
}


def _entries(
    data: str, sizes: Sequence[str], paper: Mapping[str, Sequence[float | None]]
) -> list[Entry]:
    """The first of the sizes is the number of genres."""
    genres = sizes[0]
    entries = []
    for place, size in enumerate(sizes):
        plans = {
            "By genre": trial_plan(compression=size, start="genres", frozen=True),
            "By mean rating": trial_plan(compression=size, start=f"ratings:{size}", frozen=True),
            "By genre, then CEL": trial_plan(compression=size, start="genres"),
            "By mean rating, then CEL": trial_plan(compression=size, start=f"ratings:{genres}"),
            "CEL": trial_plan(compression=size),
        }
        if size != genres:
            del plans["By genre"]  # there are no more
        for row, plan in plans.items():
            theirs = paper[row][place] if paper else None
            column = f"{data}, {size} rows"
            entries.append(Entry(row, column, Trial(data, plan), theirs, plain(data)))
    return entries


EXPERIMENTS = {
    "table5": TrialTable(
        "table5",
        "Table 5: clusters by rule on MovieLens-1m, NMF, test MSE",
        _entries("ml-1m", ("18", "40", "200"), _PAPER),
        quick=_entries("ml-100k", ("19", "34", "84"), {}),
        reference="CEL",
        notes=(
            "A film's genre is the first that is listed. Bins of mean ratings, of the training "
            "data, hold equal numbers of films.",
            "CEL goes on from 18 bins of mean ratings at all sizes, as it does from 18 genres; the "
            "paper does not say how many there were.",
            "All rows are by least squares, the default; the strength of the penalties is chosen "
            "for CEL at 1 %.",
        ),
    ),
}
