"""Tables whose entries are trials over folds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.comparison import PENALTIES
from reproduce.experiment import Cell, Experiment
from reproduce.fold_mean import FoldMean
from reproduce.presence import is_present
from reproduce.report import Report, ResultTable
from reproduce.trial import FOLDS, Trial, serves
from reproduce.widening import widened

PENALTY = "plan.penalty"


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in a table."""

    row: str
    column: str
    trial: Trial
    """On every fold."""
    paper: float | None = None
    """What the paper has there."""
    tuned: Trial | None = None
    """Whose `setting` is taken: it is chosen on validation data of the first fold."""
    folds: int = FOLDS
    setting: str = PENALTY
    """What is chosen: see `Trial.having`."""
    values: Sequence[float] = PENALTIES
    """What it is chosen among."""
    further: Sequence[float] = ()
    """What is tried beyond these, one after the other, as long as the last one is the best."""

    def choices(self, known: CellFile) -> dict[float, Trial]:
        """The trials that it is chosen by, for each value, as far as is known what to try."""
        if self.tuned is None:
            return {}
        tried = replace(self.tuned, fold=1, validated=True)

        def having(values: Sequence[float]) -> dict[float, Trial]:
            return {value: tried.having(self.setting, value) for value in values}

        return having(
            widened(self.values, self.further, lambda values: _best(having(values), known))
        )

    def chosen(self, known: CellFile) -> float | None:
        """The value with the lowest loss on validation data, None if not all are known."""
        return _best(self.choices(known), known)


def _best(trials: Mapping[float, Trial], known: CellFile) -> float | None:
    losses = {}
    for value, trial in trials.items():
        found = known.get(trial.cell())
        if found is None:
            return None
        losses[value] = np.inf if found["valid"] is None else found["valid"]
    # Where penalties make no difference, none is better than the usual ones.
    return min(losses, key=lambda value: (losses[value], abs(math.log(value))), default=None)


class TrialTable(Experiment):
    """Means over folds beside the paper's numbers, and differences to one row, fold by fold."""

    more: tuple[str, ...] = ()
    """What `run` looks at besides what a trial comes to, by the names that it tells it under."""

    def __init__(
        self,
        name: str,
        title: str,
        entries: Sequence[Entry],
        *,
        quick: Sequence[Entry] | None = None,
        reference: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """What is quick has the same entries, or others.

        Differences are to the row `reference`; those of a row `A, B` are to `reference, B` if
        there is such a row, which is not compared itself if there are others like it.
        """
        self.name, self.title, self._notes = name, title, notes
        self.entries, self._reference = entries, reference
        self.quick = entries if quick is None else quick

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """Trials that choose come first, then fold after fold."""
        entries = self.present(known, quick=quick)
        trials: list[Trial] = []
        if not quick:
            trials += [one for entry in entries for one in entry.choices(known).values()]
        for fold in range(1 if quick else FOLDS):
            for entry in entries:
                trials += self.trials(entry, known, quick=quick)[fold : fold + 1]
        cells = [trial.cell() for trial in trials]
        return list({json.dumps(cell): cell for cell in cells}.values())  # each once

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Trial`."""
        return Trial.of(cell).run()

    def serves(self, cell: Cell, found: Mapping[str, Any]) -> bool:
        """If it has all that `run` tells."""
        return serves(cell, found, self.more)

    def trials(self, entry: Entry, known: CellFile, *, quick: bool) -> list[Trial]:
        """One for each fold; none before it is known what to try."""
        trial = entry.trial
        if quick:
            return [replace(trial, fold=1, quick=True)]
        if entry.tuned is not None:
            value = entry.chosen(known)
            if value is None:
                return []
            trial = trial.having(entry.setting, value)
        return [replace(trial, fold=fold + 1) for fold in range(entry.folds)]

    def found(self, entry: Entry, known: CellFile, *, quick: bool) -> dict[int, dict[str, Any]]:
        """What is known of an entry, by fold."""
        trials = self.trials(entry, known, quick=quick)
        found = {trial.fold: known.get(trial.cell()) for trial in trials}
        return {fold: one for fold, one in found.items() if one is not None}

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """The table, the differences, and what was chosen."""
        del folder
        entries = self.present(known, quick=quick)
        values = {
            (entry.row, entry.column): self._values(entry, self.found(entry, known, quick=quick))
            for entry in entries
        }
        papers = {(entry.row, entry.column): entry.paper for entry in entries}
        tables = [self.table(entries, lambda at: self._told(values[at], papers[at]))]
        tables[0] = replace(tables[0], caption=self._caption(quick=quick))
        if self._reference is not None and not quick:
            differences = self.table(entries, lambda at: self._difference(at, values))
            caption = f"Difference to {self._reference}, mean ± standard error over the same folds:"
            tables.append(replace(differences, caption=caption))
        tables.append(self._details(entries, known, quick=quick))
        absent = dict.fromkeys(
            entry.trial.data
            for entry in (self.quick if quick else self.entries)
            if entry not in entries
        )
        smaller = quick and self.quick is not self.entries
        notes = [
            *self._notes,
            *(["What is quick is of smaller data."] if smaller else []),
            *(f"{name} is not here: its columns are left out." for name in absent),
        ]
        missing = sum(cell not in known for cell in self.cells(known, quick=quick))
        return Report(self.title, tables, notes=notes, missing=missing)

    def measured(self, entry: Entry, found: Mapping[str, Any]) -> float:
        """What stands in the place of an entry, of what a trial came to that did not diverge."""
        del entry
        value: float = found["test"]["mse"]
        return value

    def present(self, known: CellFile, *, quick: bool) -> list[Entry]:
        """The entries whose data are here, or of whose data something is known already."""
        entries = self.quick if quick else self.entries
        return [entry for entry in entries if is_present(entry.trial.data, known)]

    def _caption(self, *, quick: bool) -> str:
        if quick:
            return "Test MSE: one fold, few steps, nothing tuned [the paper's]:"
        return "Test MSE, mean ± standard error over folds [the paper's]:"

    def table(
        self, entries: Sequence[Entry], tell: Callable[[tuple[str, str]], str]
    ) -> ResultTable:
        """What `tell` says of each place, a row and a column."""
        columns = list(dict.fromkeys(entry.column for entry in entries))
        places = {(entry.row, entry.column) for entry in entries}
        rows = [
            [row, *(tell((row, column)) if (row, column) in places else "" for column in columns)]
            for row in dict.fromkeys(entry.row for entry in entries)
        ]
        return ResultTable(["", *columns], rows)

    def _values(self, entry: Entry, found: dict[int, dict[str, Any]]) -> dict[int, float]:
        return {
            fold: np.nan if "diverged" in one else self.measured(entry, one)
            for fold, one in found.items()
        }

    def _told(self, values: dict[int, float], paper: float | None) -> str:
        theirs = "" if paper is None else f" [{paper:.4f}]"
        return f"{_mean(list(values.values()))}{theirs}"

    def _difference(
        self, at: tuple[str, str], values: dict[tuple[str, str], dict[int, float]]
    ) -> str:
        row, column = at
        end = _end(row)
        alike = any(_end(other) == end for other, _ in values if other != row)
        of_row, of_all = ((f"{self._reference}{one}", column) for one in (end, ""))
        if at == of_all or (at == of_row and (alike or of_all not in values)):
            return ""
        places = [place for place in (of_row, of_all) if place in values and place != at]
        reference = values[places[0]] if places else {}
        same = [value - reference[fold] for fold, value in values[at].items() if fold in reference]
        return _mean(same, sign="+")

    def _details(self, entries: Sequence[Entry], known: CellFile, *, quick: bool) -> ResultTable:
        rows = []
        settings = list(dict.fromkeys(entry.setting for entry in entries))
        once: dict[str, Entry] = {}  # what is read off the same trial
        for entry in entries:
            once.setdefault(json.dumps(entry.trial.cell()), entry)
        for entry in once.values():
            found = list(self.found(entry, known, quick=quick).values())
            found = [one for one in found if "diverged" not in one]
            if not found:
                continue
            trial = self.trials(entry, known, quick=quick)[0]
            mine = f"{trial.value_of(entry.setting):g}"
            told = [mine if setting == entry.setting else "" for setting in settings]
            middle = {
                name: f"{np.median([one[name] for one in found]):,.0f}"
                for name in ("rows", "table", "index", "training", "steps", "seconds")
            }
            rows.append([entry.row, entry.column, *told, *middle.values()])
        headers = [_heading(setting) for setting in settings]
        return ResultTable(
            ("", "", *headers, "rows", "table", "index", "training", "steps", "seconds"),
            rows,
            caption="Medians over folds: rows in the end; bytes of the compressed tables, of what "
            "leads ids to their rows, and of both in training; steps that validation data chose; "
            "seconds of one processor, beside another cell. "
            + ". ".join(_explained(setting, entries) for setting in settings)
            + ":",
        )


def _end(row: str) -> str:
    """What tells rows of one kind from those of another: `, B` of `A, B`."""
    _, comma, rest = row.partition(",")
    return comma + rest


def _mean(values: list[float], sign: str = "") -> str:
    if np.isnan(values).any():
        return f"diverged ({np.isnan(values).sum()} of {len(values)} folds)"
    return FoldMean.of(values).told(sign=sign, of=FOLDS)


def _heading(setting: str) -> str:
    return "penalties" if setting == PENALTY else setting.rpartition(".")[2].replace("_", " ")


def _explained(setting: str, entries: Sequence[Entry]) -> str:
    mine = [entry for entry in entries if entry.setting == setting]
    tried, further = (
        ", ".join(f"{value:g}" for value in sorted(values))
        for values in (
            {value for entry in mine for value in entry.values},
            {value for entry in mine for value in entry.further},
        )
    )
    if further:
        tried += f", and beyond these ({further}) as long as the last one was the best,"
    penalties = "Penalties are relative to the usual ones,"
    what = penalties if setting == PENALTY else f"The {_heading(setting)} is"
    return f"{what} chosen among {tried} where that was done"
