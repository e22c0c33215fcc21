"""Figures of trials over folds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from celrec.data.split import Split
from celrec.evaluation.cell_file import CellFile
from celrec.offline.fitting import Fit
from reproduce.experiment import Cell, Experiment
from reproduce.report import Report, ResultTable
from reproduce.trial import Trial, serves
from reproduce.trial_table import Entry, TrialTable

Found: TypeAlias = Mapping[tuple[str, str], Mapping[int, Mapping[str, Any]]]
"""By row and column of the table, then by fold, what the trials came to that did not diverge."""
QUICK = "This is the quick version: MovieLens-100k, and fewer sizes."


class TrialFigure(Experiment):
    """A picture of a `TrialTable`, which stands beside it.

    What is quick has entries of its own.
    """

    more: tuple[str, ...] = ()
    """The names under which `look` tells what it sees."""

    def __init__(
        self,
        name: str,
        title: str,
        entries: Sequence[Entry],
        quick: Sequence[Entry],
        *,
        reference: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.name, self.title = name, title
        self._entries = {False: entries, True: quick}
        self._tables = {
            False: TrialTable(name, title, entries, reference=reference, notes=notes),
            True: TrialTable(name, title, quick, notes=(*notes, QUICK)),
        }

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """Those of the table."""
        return self._tables[quick].cells(known, quick=quick)

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Trial`; and what `look` sees."""
        return Trial.of(cell).run(self.look)

    def serves(self, cell: Cell, found: Mapping[str, Any]) -> bool:
        """If it has all that `run` tells."""
        return serves(cell, found, self.more)

    def look(self, fitted: Fit, split: Split) -> dict[str, Any]:
        """What is to be kept of a trained model besides."""
        del fitted, split
        return {}

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """The table, more tables, and the picture, as soon as there is something to draw."""
        report = self._tables[quick].report(known, folder, quick=quick)
        found = self.found(known, quick=quick)
        if not any(found.values()):
            return report
        tables = [*self.more_tables(found), *report.tables]
        return replace(report, tables=tables, figures=self.draw(found, folder))

    def found(self, known: CellFile, *, quick: bool) -> Found:
        """What is known."""
        table = self._tables[quick]
        found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for entry in self._entries[quick]:
            of_folds = table.found(entry, known, quick=quick)
            kept = {fold: one for fold, one in of_folds.items() if "diverged" not in one}
            found[entry.row, entry.column] = kept
        return found

    def more_tables(self, found: Found) -> list[ResultTable]:
        """What is to be told besides test errors."""
        del found
        return []

    @abstractmethod
    def draw(self, found: Found, folder: Path) -> list[str]:
        """Draw what there is, which is not nothing, with `drawing`; the names of the files."""
