"""A budget in bytes: the method's ranks, rows and levels that fit, chosen on validation data."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.offline.packing import ROUNDED, Candidate, Levels, compressed
from celrec.recommender.model import Model

_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_ROWS = (4, 8, 16, 32, 64, 128, 256, 512)
_RATIOS = (1 / 3, 1 / 2, 2 / 3, 1.0, 3 / 2, 2.0, 3.0)
_BIASES = (0, 4, 16, 64, 256)
_K_MEANS = ("k-means", "weighted-k-means")
_LEVELS = 16  # at most: more do not lower the error where memory is plentiful
_CLUSTERS = 2048  # of one level, at most
_CLIMBS = 2  # from starts of different ranks
_LEAST_GAIN = 1e-5  # of losses, below which a setting is as good as another
_ENOUGH = 2e-4  # times the variance of the targets: a loss that more bytes need not lower


@dataclass(frozen=True, slots=True)
class Settings:
    """What is chosen apart from the number of levels, which a budget determines."""

    rank: int
    rows: int
    ratio: float = 1.0
    """Levels of items for each of users; of `kmeans`, rows."""
    bias_rows: int = 0
    codes: str = "joint"


@dataclass(frozen=True, slots=True)
class Choice:
    """What validation data chose for a budget."""

    candidate: Candidate
    size: int
    """Bytes of both tables."""
    valid_loss: float
    """The mean squared error on validation data."""
    settings: Settings | None = None
    """None for methods with a row for each id."""


class BudgetSearch:
    """Chooses among compressions of one full fit, by their predictions for validation data.

    The loss of a candidate is the mean squared difference from the predictions of the full fit.
    That is what compression adds to the error, but for a term that is 0 in the mean, and whose
    noise is greater than the differences of good candidates.

    For each of some settings, the levels are as many as the bytes allow. The search goes on from
    the best of a few settings: one after the other is changed as long as the loss falls.
    What was evaluated once is known afterwards, so that searches for several budgets share
    their work.
    """

    def __init__(
        self, full: Model, log: Interactions, valid: Interactions, rank: int, seed: int = 0
    ) -> None:
        """`full` was fitted to `log` with this rank; `valid` are other interactions."""
        if not len(valid):
            raise CelrecError(
                f"budget needs validation data, and {len(log):,} training rows leave none; "
                "give compression and levels instead"
            )
        self._full, self._log, self._valid, self._seed = full, log, valid, seed
        self._ranks = [one for one in _RANKS if one < rank] + [rank]
        self._target = torch.tensor(valid.target)
        self._predictions = full.predict(valid)
        self._enough = _ENOUGH * float(np.var(valid.target))
        self._known: dict[Candidate, tuple[float, float]] = {}

    def best(self, budget: int, method: str = "cel", start: Settings | None = None) -> Choice:
        """The candidate of a method with the lowest loss within a budget in bytes.

        `start` are settings to begin with, such as those chosen for another budget.
        """
        if method in ROUNDED:
            return self._choose(budget, self._rounded(budget, method), method)
        starts = ([] if start is None else [start]) + self._starts(method)
        starts.sort(key=lambda one: self._loss_of(one, budget, method))
        firsts = {one.rank: one for one in reversed(starts)}  # the best of each rank
        climbed = [self._climb(firsts[rank], budget, method) for rank in [*firsts][-_CLIMBS:]]
        settings = min(climbed, key=lambda one: self._loss_of(one, budget, method))
        found = self._filled(settings, budget, method)
        return self._choose(budget, [] if found is None else [found], method, settings)

    def _climb(self, settings: Settings, budget: int, method: str) -> Settings:
        """Change one setting after the other to a neighbouring value while the loss falls."""
        best, moved = self._loss_of(settings, budget, method), True
        while moved:
            moved = False
            for name, known in self._choices(method).items():
                place = known.index(getattr(settings, name))
                for other in known[place + 1 : place + 2] + known[max(place - 1, 0) : place]:
                    changed = _replaced(settings, name, other)
                    loss = self._loss_of(changed, budget, method)
                    if loss < best - _LEAST_GAIN:
                        settings, best, moved = changed, loss, True
        return settings

    def is_enough(self, choice: Choice) -> bool:
        """Whether a choice predicts next to the same as the full fit, so that no more is needed."""
        return self.loss(choice.candidate) <= self._enough

    def loss(self, candidate: Candidate) -> float:
        """The mean squared difference from the predictions of the full fit."""
        return self._evaluated(candidate)[0]

    def _evaluated(self, candidate: Candidate) -> tuple[float, float]:
        """The loss of a candidate, and its squared error on validation data."""
        if candidate not in self._known:
            model = compressed(self._full, self._log, candidate, self._seed)
            found = model.predict(self._valid)
            loss, error = (
                float((found - right).square().mean())
                for right in (self._predictions, self._target)
            )
            self._known[candidate] = loss, error
        return self._known[candidate]

    def _choose(
        self,
        budget: int,
        candidates: list[Candidate],
        method: str,
        settings: Settings | None = None,
    ) -> Choice:
        users, items = self._log.num_users, self._log.num_items
        if not candidates:
            raise CelrecError(
                f"budget: {budget:,} bytes are too few for {method!r} tables of {users:,} users "
                f"and {items:,} items; give more, such as {users + items + 500:,}"
            )
        losses = {one: self.loss(one) for one in candidates}
        best = min(losses, key=lambda one: losses[one])
        return Choice(best, best.size(users, items), self._evaluated(best)[1], settings)

    def _loss_of(self, settings: Settings, budget: int, method: str) -> float:
        candidate = self._filled(settings, budget, method)
        return torch.inf if candidate is None else self.loss(candidate)

    def _starts(self, method: str) -> list[Settings]:
        rows = (16,) if method == "kmeans" else (8, 64)
        codes = "joint" if method == "cel" else _K_MEANS[-1]
        ranks = [rank for rank in (3, 8, 16) if rank in self._ranks] or self._ranks[-1:]
        small = [Settings(1, 4, codes=codes)]
        return [*small, *(Settings(rank, one, codes=codes) for rank in ranks for one in rows)]

    def _choices(self, method: str) -> dict[str, list[Any]]:
        """The values of each setting, in an order in which neighbours are alike."""
        choices: dict[str, list[Any]] = {
            "rank": self._ranks,
            "rows": [*_ROWS],
            "ratio": [*_RATIOS],
            "bias_rows": [*_BIASES],
            "codes": ["joint"] if method == "cel" else [*_K_MEANS],
        }
        if method == "kmeans":
            del choices["rows"]
        return choices

    def _filled(self, settings: Settings, budget: int, method: str) -> Candidate | None:
        """The candidate of some settings with as many levels as a budget allows."""
        users, items = self._log.num_users, self._log.num_items

        def make(count: int) -> Candidate:
            other, rows = max(round(settings.ratio * count), 1), settings.rows
            if method == "kmeans":
                shapes = Levels(min(count, users), 1), Levels(min(other, items), 1)
            else:
                shapes = Levels(min(rows, users), count), Levels(min(rows, items), other)
                if method == "pq":
                    shapes = self._parts(settings, *shapes)
            return Candidate(method, settings.rank, *shapes, settings.bias_rows, settings.codes)

        counts = range(1, (_CLUSTERS if method == "kmeans" else _LEVELS) + 1)
        fitting = _last_fitting(counts, lambda n: make(n).size(users, items) <= budget)
        return None if fitting is None else make(fitting)

    def _parts(self, settings: Settings, users: Levels, items: Levels) -> tuple[Levels, Levels]:
        """With as many parts as divide the columns."""
        dim = settings.rank + (not settings.bias_rows)
        first, second = (Levels(one.rows, _divisor(dim, one.number)) for one in (users, items))
        return first, second

    def _rounded(self, budget: int, method: str) -> list[Candidate]:
        candidates = [
            Candidate(method, rank, bias_rows=apart)
            for rank in range(1, self._ranks[-1] + 1)
            for apart in (0, 1)
        ]
        users, items = self._log.num_users, self._log.num_items
        return [one for one in candidates if one.size(users, items) <= budget]


def _replaced(settings: Settings, name: str, value: Any) -> Settings:
    return replace(settings, **{name: value})


def _last_fitting(counts: range, fits: Callable[[int], bool]) -> int | None:
    """The last of ascending counts that fits, by bisection."""
    place = bisect.bisect_left(counts, True, key=lambda count: not fits(count))
    return counts[place - 1] if place else None


def _divisor(dim: int, most: int) -> int:
    """The greatest number of equal parts of `dim` columns, at most `most`."""
    return max(parts for parts in range(1, most + 1) if dim % parts == 0)
