"""Embedding methods side by side: the same data, the same tuning, all bytes counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celrec.config.options import SIDES
from celrec.config.plan import Plan
from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.embeddings.registry import find_method
from celrec.errors import CelrecError
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.cluster_diagnostics import diagnose
from celrec.evaluation.metrics import Accuracy, area_under_curve
from celrec.offline.fitting import Change, Fit, fit, validate
from celrec.offline.solver import Watcher
from celrec.recommender.model import Model
from celrec.recommender.negatives import Negatives


def measure(
    model: Model, plan: Plan, log: Interactions, item_counts: NDArray[np.int64]
) -> dict[str, float | None]:
    """The `Accuracy` of a model, with the metrics that its plan allows.

    For implicit feedback, each row is compared with a negative sample: there is an AUC, and no
    squared error. With two tasks, `conversion_auc` is the AUC of the conversions.
    """
    if plan.only_positive:
        log = Negatives(log).beside(log, plan.seed)
    found: dict[str, float | None] = asdict(Accuracy.of(model.predict(log), log, item_counts))
    if plan.only_positive:
        found |= dict.fromkeys(("mse", "mse_cold", "mse_warm"))
    if plan.conversions and plan.positive is not None:
        converted = log.target >= plan.positive
        both = converted.any() and not converted.all()
        outputs = model.outputs(log)[..., 1]
        found["conversion_auc"] = area_under_curve(outputs, converted) if both else None
    return found


def train_and_measure(
    split: Split,
    plan: Plan,
    watch: Watcher = lambda _, __: None,
    change: Change = lambda how: how,
) -> dict[str, Any]:
    """Train as `fit` does, and tell what came of it: see `outcome`."""
    begun = time.perf_counter()
    fitted = fit(split, plan, watch, change=change)
    return outcome(fitted, split, plan, time.perf_counter() - begun)


def outcome(fitted: Fit, split: Split, plan: Plan, seconds: float) -> dict[str, Any]:
    """The test metrics of a trained model and the bytes of its compressed tables, for JSON."""
    model, counts = fitted.model, split.train_and_valid().item_counts
    sides = [s for s, shared in zip(("users", "items"), SIDES[plan.side], strict=True) if shared]
    tables = [model.whole_tables[side] for side in sides]
    memories = [table.memory() for table in tables]
    return {
        "test": measure(model, plan, split.test, counts),
        "valid": fitted.valid_loss,
        "steps": fitted.steps,
        "rows": sum(table.num_rows for table in tables),
        "overrun": max(table.overrun for table in tables),
        "ticks": fitted.traits[sides[0]].ticks,
        "table": sum(memory.table for memory in memories),
        "index": sum(memory.index for memory in memories),
        "training": sum(fitted.training_bytes[side] for side in sides),
        "seconds": seconds,
    }


FULL = "full"
"""The method to which times are relative."""
CLUSTERED = ("cel", "cel-int8")
PENALTIES = (0.5, 1.0, 2.0, 4.0)
"""Factors on the regularisation, for the hyperparameter search."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """What a method reached at some compression, over all folds."""

    embedding: str
    compression: str
    ticks: str
    """Low time, low memory, incremental: see `Traits`."""
    rows: float
    overrun: float
    """The bytes of the table over those of the rows that were asked for."""
    folds: int
    metric: str
    """`mse`, or `auc`."""
    mean: float
    error: float | None
    """The standard error over folds."""
    cold: float | None
    warm: float | None
    table: float
    """Bytes, as the other sizes."""
    index: float
    training: float
    seconds: float
    relative: float | None
    """Seconds over those of the full embedding, if that is compared too."""
    penalty: float | None
    """The one that was chosen most, if it was chosen."""
    clustered_instead: float | None
    """The best that CEL reached with no more bytes for serving; None if it needs more."""

    @property
    def serving(self) -> float:
        """Bytes of table and index together."""
        return self.table + self.index

    def better(self, other: float) -> bool:
        """Whether it is ahead of a value of the metric."""
        return self.mean < other if self.metric == "mse" else self.mean > other


class Comparison:
    """Every method at every compression on every fold.

    With `path`, finished cells are lines of that file and not trained again, so an interrupted
    comparison can be resumed. All methods have the same hyperparameter search: the strength of
    regularisation among `penalties`, if there are any, and early stopping.

    >>> import celrec
    >>> log = celrec.Planted(rows=2000, users=30, items=40, item_clusters=4).interactions()
    >>> comparison = Comparison(log, Plan(rank=4), ["full", "modulo"], ["4"])
    >>> [(standing.embedding, standing.compression) for standing in comparison.run()]
    [('full', '100%'), ('modulo', '4')]
    """

    def __init__(
        self,
        log: Interactions,
        plan: Plan,
        embeddings: Sequence[str],
        compressions: Sequence[str],
        *,
        folds: Sequence[tuple[int, int] | None] = (None,),
        name: str = "",
        penalties: Sequence[float] = (),
        path: Path | None = None,
    ) -> None:
        self._log, self._penalties = plan.prepared(log), list(penalties)
        self._seed, self._name = plan.seed, name
        self.plans: list[Plan] = []
        """What is compared."""
        for embedding in dict.fromkeys(embeddings):
            several = compressions if find_method(embedding).compressed else ["100%"]
            levels = plan.levels if embedding == "cel" else 1  # others have no levels
            self.plans += [
                replace(plan, embedding=embedding, compression=size, levels=levels)
                for size in dict.fromkeys(several)
            ]
        self._folds = list(dict.fromkeys(folds))
        # A plan may have learned to say more since older cells were written.
        self._cells = CellFile(path, asdict(Plan()))

    @property
    def size(self) -> int:
        """How many cells there are."""
        return len(self.plans) * len(self._folds)

    def run(
        self, watch: Callable[[int, Plan], Watcher] = lambda _, __: lambda _, __: None
    ) -> list[ComparisonRow]:
        """Train missing cells; `watch(number, plan)` returns the callback of one's training."""
        for number, (plan, fold) in enumerate(self._pairs()):
            cell = self._cell(plan, fold)
            if cell not in self._cells:
                self._cells.keep(cell, self._train(plan, fold, watch(number, plan)))
        return self.standings()

    def standings(self) -> list[ComparisonRow]:
        """What is there, in the order of the plans."""
        found = []
        for plan in self.plans:
            cells = self._finished(plan)
            if cells:
                found.append(self._standing(plan, cells))
        return [replace(one, clustered_instead=clustered_instead(one, found)) for one in found]

    def _pairs(self) -> Iterator[tuple[Plan, tuple[int, int] | None]]:
        for fold in self._folds:
            for plan in self.plans:
                yield plan, fold

    def _train(self, plan: Plan, fold: tuple[int, int] | None, watch: Watcher) -> dict[str, Any]:
        if fold is None:
            split = Split.random(self._log, seed=self._seed)
        else:
            split = Split.fold(self._log, *fold, seed=self._seed)
        trials: dict[float, float] = {}
        for penalty in self._penalties:
            trials[penalty] = validate(split, replace(plan, penalty=penalty), watch)
        if trials:
            plan = replace(plan, penalty=min(trials, key=lambda tried: trials[tried]))
        return {
            **train_and_measure(split, plan, watch),
            "penalty": plan.penalty if trials else None,
            "trials": {str(penalty): loss for penalty, loss in trials.items()},
        }

    def _standing(self, plan: Plan, cells: list[dict[str, Any]]) -> ComparisonRow:
        metric = "mse" if plan.loss == "squared-error" else "auc"
        values = [cell["test"][metric] for cell in cells]
        if any(value is None for value in values):
            raise CelrecError("the test part has one kind of target only; take another split")
        full = [
            cell for plan in self.plans if plan.embedding == FULL for cell in self._finished(plan)
        ]
        whole = [cell["seconds"] for cell in full]
        penalties = [cell["penalty"] for cell in cells if cell["penalty"] is not None]
        seconds = float(np.median([cell["seconds"] for cell in cells]))
        parts = {
            part: [cell["test"].get(f"{metric}_{part}") for cell in cells]
            for part in ("cold", "warm")
        }
        return ComparisonRow(
            embedding=plan.embedding,
            compression=plan.compression,
            ticks=cells[0]["ticks"],
            **{name: _mean(cells, name) for name in ("rows", "overrun", "table", "index")},
            training=_mean(cells, "training"),
            folds=len(cells),
            metric=metric,
            mean=float(np.mean(values)),
            error=None if len(values) < 2 else float(np.std(values, ddof=1) / len(values) ** 0.5),
            cold=_known_mean(parts["cold"]),
            warm=_known_mean(parts["warm"]),
            seconds=seconds,
            relative=seconds / float(np.median(whole)) if whole else None,
            penalty=max(penalties, key=penalties.count) if penalties else None,
            clustered_instead=None,
        )

    def _finished(self, plan: Plan) -> list[dict[str, Any]]:
        found = (self._cells.get(self._cell(plan, fold)) for fold in self._folds)
        return [one for one in found if one is not None]

    def _cell(self, plan: Plan, fold: tuple[int, int] | None) -> dict[str, Any]:
        return {"data": self._name, "penalties": self._penalties, "fold": fold, **asdict(plan)}


def compare(
    log: Interactions,
    embeddings: Sequence[str],
    compressions: Sequence[str],
    *,
    plan: Plan | None = None,
    folds: Sequence[tuple[int, int] | None] = (None,),
    penalties: Sequence[float] = (),
) -> list[ComparisonRow]:
    """Train embedding methods at several compressions on the same data; a row for each.

    Args:
        log: The interactions. A part of them is the test data.
        embeddings: Names of methods, as in `celrec embeddings`.
        compressions: Shares of the ids ("5%") or numbers of rows ("40").
        plan: All other options; the default plan if None.
        folds: Test on these folds, as in `[(1, 5), (2, 5)]`, or on a random fifth (None).
        penalties: Strengths of regularisation to choose among on validation data.

    >>> import celrec
    >>> log = celrec.Planted(rows=2000, users=30, items=40, item_clusters=4).interactions()
    >>> rows = celrec.compare(log, ["full", "modulo"], ["4"], plan=celrec.Plan(rank=4))
    >>> [(row.embedding, row.compression) for row in rows]
    [('full', '100%'), ('modulo', '4')]

    """
    plan = Plan() if plan is None else plan
    return Comparison(log, plan, embeddings, compressions, folds=folds, penalties=penalties).run()


def clustered_instead(one: ComparisonRow, every: Sequence[ComparisonRow]) -> float | None:
    """The best value of CEL's with no more bytes for serving than this one takes."""
    values = [
        other.mean
        for other in every
        if other.embedding in CLUSTERED and other.serving <= one.serving
    ]
    if not values or one.embedding in CLUSTERED:
        return None
    return min(values) if one.metric == "mse" else max(values)


def _mean(cells: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([cell[name] for cell in cells]))


def _known_mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def training_result(fitted: Fit, plan: Plan, split: Split, seconds: float) -> dict[str, Any]:
    """The result of training for a run folder, as JSON.

    Errors on test and validation data, rows, steps, bytes in serving and training, seconds, the
    reason for the number of clusters, and their diagnostics.
    """
    model, learned = fitted.model, split.train_and_valid()
    has_tree = plan.embedding == "cel" and plan.budget is None  # packed tables keep no split tree
    tables = model.whole_tables
    memory = {side: table.memory() for side, table in tables.items()}
    table_bytes = sum(
        sum(t.nbytes for t in table.state_dict().values()) for table in tables.values()
    )
    return {
        "test": measure(model, plan, split.test, learned.item_counts),
        "valid": {"mse" if plan.loss == "squared-error" else "loss": fitted.valid_loss},
        "clusters": tables["items"].num_rows,
        "steps": fitted.steps,
        "bytes": {
            "table": memory["items"].table,
            "index": memory["items"].index,
            "other_side": memory["users"].total,
            "columns": {n: m.total for n, m in memory.items() if n not in ("items", "users")},
            "network": sum(t.nbytes for t in model.state_dict().values()) - table_bytes,
        },
        "training_bytes": fitted.training_bytes,
        "seconds": seconds,
        "growth": fitted.growth,
        "diagnostics": diagnose(model, learned) if has_tree else None,
    }
