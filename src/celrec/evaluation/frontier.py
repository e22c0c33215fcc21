"""Error against bytes: compressions of one full fit within many budgets, by several methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from celrec.config.building import make_model
from celrec.config.byte_budget import parse_budget
from celrec.config.plan import Plan
from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.errors import CelrecError
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.metrics import Accuracy
from celrec.offline.budget import BudgetSearch, Choice, Settings
from celrec.offline.checkpoint import Checkpoint
from celrec.offline.packing import ROUNDED, candidate_of, compressed
from celrec.offline.training import OfflineTraining
from celrec.recommender.model import Model

BUDGETS = tuple(f"{size}B/id" for size in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64))
"""From a byte an id to more than most full tables of few columns take."""
OURS = "cel"
RIVALS = ("kmeans", "rq", "pq", *ROUNDED)
FULL_FIT = "full fit"
"""The name of the model that all others are made of."""


@dataclass(frozen=True, slots=True)
class FrontierRow:
    """What a method reached within a budget, over all folds."""

    method: str
    budget: str
    size: float
    """Bytes of both tables: rows, codes, steps and biases."""
    per_id: float
    """The same, per user and item."""
    mean: float
    """Of the mean squared error on test data."""
    error: float | None
    """The standard error over folds."""
    ahead: float | None
    """By how many standard errors of the differences to CEL it is ahead of it; None for CEL, and
    with fewer than two folds."""
    folds: int
    chosen: str
    """What validation data chose in the first fold."""


class Fits(NamedTuple):
    """Full fits of one fold: to the training part, and to the validation part too."""

    split: Split
    search: BudgetSearch
    final: Model


class Frontier:
    """Chooses, for each budget and method, a compression on validation data, and tests it.

    In each fold there is one full fit to the training part, of which everything is chosen, and
    one to the validation part too, of which the chosen compression is made anew. Finished cells
    are written to `path` one by one, and are not done again.
    """

    def __init__(
        self,
        log: Interactions,
        *,
        budgets: Sequence[str] = BUDGETS,
        methods: Sequence[str] = (OURS, *RIVALS),
        folds: Sequence[tuple[int, int]] = ((1, 5),),
        name: str = "",
        path: Path | None = None,
        plan: Plan | None = None,
    ) -> None:
        """`name` tells apart the data of the cells; `plan` has the rank and the seed."""
        for method in methods:
            if method not in (OURS, *RIVALS):
                raise CelrecError(
                    f"methods must be of {', '.join((OURS, *RIVALS))}, not {method!r}"
                )
        plan = plan or Plan(model="mf")
        full = plan.full_fit
        if full is None:
            raise CelrecError(
                f"preset {plan.preset!r} has no full fit to compress; take preset 'default'"
            )
        self._log, self._name, self._plan = log, name, full
        self._ids = log.num_users + log.num_items
        self.budgets = sorted(budgets, key=lambda budget: parse_budget(budget, self._ids))
        self.methods, self.folds = tuple(methods), tuple(folds)
        self._cells = CellFile(path)

    @property
    def size(self) -> int:
        """How many cells there are."""
        return len(self.folds) * (len(self.budgets) * len(self.methods) + 1)

    def run(self, watch: Callable[[int, str], None] = lambda _, __: None) -> list[FrontierRow]:
        """Find what is missing; `watch` is told the number and the name of each cell."""
        number = 0
        for fold in self.folds:
            fits: Fits | None = None
            for method, budget in self._pairs():
                watch(number, f"{method} {budget}".strip())
                number += 1
                cell = self._cell(fold, method, budget)
                if cell not in self._cells:
                    fits = fits or self._fits(fold)
                    self._cells.keep(cell, self._found(fits, fold, method, budget))
        return self.rows()

    def rows(self) -> list[FrontierRow]:
        """What is finished, by budget and method; the full fit first."""
        found = []
        for method, budget in self._pairs():
            cells = {fold: self._cells.get(self._cell(fold, method, budget)) for fold in self.folds}
            known = {fold: cell for fold, cell in cells.items() if cell and "test" in cell}
            if known:
                found.append(self._row(method, budget, known))
        return found

    def _pairs(self) -> Iterator[tuple[str, str]]:
        yield FULL_FIT, ""
        for budget in self.budgets:
            for method in self.methods:
                yield method, budget

    def _cell(self, fold: tuple[int, int], method: str, budget: str) -> dict[str, Any]:
        about = {"data": self._name, "rank": self._plan.dim, "seed": self._plan.seed}
        return {**about, "fold": fold, "method": method, "budget": budget}

    def _fits(self, fold: tuple[int, int]) -> Fits:
        split = Split.fold(self._log, *fold, seed=self._plan.seed)
        everything = split.train_and_valid()
        first, steps = self._fit(split.train, split.valid)
        final, _ = self._fit(everything, everything[:0], steps)
        search = BudgetSearch(
            first, split.train.seen(), split.valid, self._plan.dim, self._plan.seed
        )
        return Fits(split, search, final)

    def _fit(
        self, train: Interactions, valid: Interactions, steps: int | None = None
    ) -> tuple[Model, int]:
        """A full fit, and how many steps validation data chose or were given."""
        model, how = make_model(train, self._plan), self._plan.settings()
        if steps is not None:
            how = replace(how, schedule=replace(how.schedule, steps=steps, validate_every=steps))
        training = OfflineTraining(model, train, valid, how)
        record = Checkpoint().run("choose", training, lambda _, __: None)
        return model, record.step

    def _found(self, fits: Fits, fold: tuple[int, int], method: str, budget: str) -> dict[str, Any]:
        begun, model = time.perf_counter(), fits.final
        chosen: dict[str, Any] = {"chosen": f"rank {self._plan.dim}, float32"}
        if method != FULL_FIT:
            size = parse_budget(budget, self._ids)
            try:
                smaller = self._smaller(fold, method, budget)
                if smaller is None or not fits.search.is_enough(smaller):
                    start = None if smaller is None else smaller.settings
                    choice = fits.search.best(size, method, start)
                else:
                    choice = smaller
            except CelrecError as error:  # the method has no table that is as small
                return {"too_small": str(error)}
            learned = fits.split.train_and_valid().seen()
            model = compressed(fits.final, learned, choice.candidate, self._plan.seed)
            chosen = {"chosen": choice.candidate.text, **asdict(choice)}
        counts = fits.split.train_and_valid().item_counts
        accuracy = Accuracy.of(model.predict(fits.split.test), fits.split.test, counts)
        return {
            **chosen,
            "size": sum(table.memory().total for table in model.whole_tables.values()),
            "test": accuracy.mse,
            "cold": accuracy.mse_cold,
            "seconds": time.perf_counter() - begun,
        }

    def _smaller(self, fold: tuple[int, int], method: str, budget: str) -> Choice | None:
        """What was chosen for the budget before this one."""
        place = self.budgets.index(budget)
        cell = self._cells.get(self._cell(fold, method, self.budgets[place - 1])) if place else None
        if cell is None or "candidate" not in cell:
            return None
        settings = cell["settings"] and Settings(**cell["settings"])
        candidate = candidate_of(cell["candidate"])
        return Choice(candidate, cell["size"], cell["valid_loss"], settings)

    def _row(
        self, method: str, budget: str, cells: dict[tuple[int, int], dict[str, Any]]
    ) -> FrontierRow:
        tests = np.array([cell["test"] for cell in cells.values()])
        size = float(np.mean([cell["size"] for cell in cells.values()]))
        return FrontierRow(
            *(method, budget, size, size / self._ids),
            mean=float(tests.mean()),
            error=_standard_error(tests),
            ahead=None if method in (OURS, FULL_FIT) else self._ahead(budget, cells),
            folds=len(cells),
            chosen=next(iter(cells.values()))["chosen"],
        )

    def _ahead(self, budget: str, cells: dict[tuple[int, int], dict[str, Any]]) -> float | None:
        ours = {fold: self._cells.get(self._cell(fold, OURS, budget)) for fold in cells}
        apart = np.array(
            [
                one["test"] - cells[fold]["test"]
                for fold, one in ours.items()
                if one and "test" in one
            ]
        )
        error = _standard_error(apart)
        return None if not error else float(apart.mean()) / error


def _standard_error(values: np.ndarray[Any, Any]) -> float | None:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
