"""The contents of a page: the run, its comparison with baselines, and cards of main numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from celrec.config.plan import Plan
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.evaluation.prequential import Measured
from celrec.inference.codes import count_levels
from celrec.offline.fitting import fit
from celrec.offline.solver import ValidationRecord, Watcher
from celrec.recommender.model import Model
from celrec.reporting.cluster_view import ClusterView
from celrec.reporting.compared_models import (
    BIASES,
    MEANS,
    REFERENCE,
    RUN,
    ComparedModel,
    baselines,
    value_of,
)
from celrec.reporting.evaluator import (
    BEST,
    Evaluator,
    Figures,
    Recommend,
    RunData,
    online_record,
    read_validation_records,
)
from celrec.reporting.frequency import MemoryBill
from celrec.reporting.wording import (
    change,
    compressed_sides,
    figure,
    method_name,
    size,
    times,
    whole,
)
from celrec.runs.run_folder import Run
from celrec.runtime.atomic import atomic_file

NAME = "reference.json"
"""The file in the run folder."""
FULL = "full"
_FORMAT = 1
Watched: TypeAlias = Callable[[Plan], AbstractContextManager[Watcher]]
"""Makes a context with a watcher of training, given the plan."""


def unwatched(plan: Plan) -> AbstractContextManager[Watcher]:
    """A context without progress."""
    del plan
    return nullcontext(lambda _, __: None)


def full_plan(plan: Plan) -> Plan:
    """The plan with a full embedding; a plan that is learned online stays online.

    >>> plan = full_plan(Plan(embedding="cel-lite", personalise="all", seed=3))
    >>> plan.embedding, plan.preset, plan.personalise, plan.seed
    ('full', 'online', 'none', 3)
    """
    return replace(
        plan,
        embedding=FULL,
        compression="1%",  # ignored by a full table
        rank=plan.dim,
        preset="online" if plan.online else plan.preset,
        start="one",
        frozen=False,
        personalise="none",
    )


class Reference:
    """The metrics of a full embedding for the data of a run, saved in its folder as JSON.

    They are reused if data and metrics are the same.
    """

    def __init__(self, folder: Path, data: RunData) -> None:
        self._path, self._data = folder / NAME, data

    def kept(self, evaluator: Evaluator) -> Figures | None:
        """The saved metrics; None if there are none for these data."""
        try:
            found = json.loads(self._path.read_text())
            if found["about"] == self._about(evaluator):
                return Figures(**found["figures"])
        except (OSError, ValueError, LookupError, TypeError):
            pass  # it is trained anew
        return None

    def train(
        self, plan: Plan, evaluator: Evaluator, recommend: Recommend, watched: Watched = unwatched
    ) -> Figures:
        """Train a full embedding with the settings and data of the run; save its metrics."""
        with watched(full_plan(plan)) as watch:
            fitted = fit(self._data.split, full_plan(plan), watch)
        return self.keep(fitted.model, evaluator, recommend)

    def keep(self, model: Model, evaluator: Evaluator, recommend: Recommend) -> Figures:
        """Save the metrics of a full embedding that was trained elsewhere."""
        figures = evaluator.of_model(model, recommend)
        content = {"about": self._about(evaluator), "figures": asdict(figures)}
        with atomic_file(self._path) as temporary:
            temporary.write_text(json.dumps(content, indent=2))
        return figures

    def _about(self, evaluator: Evaluator) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "data": self._data.fingerprint,
            "metric": evaluator.metric,
            "items": evaluator.items.labels,
            "users": evaluator.users.labels,
        }


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The run and the models it is compared with, the simplest first, the run last."""

    compared_models: list[ComparedModel]
    evaluator: Evaluator | None
    """None if the test data are not available."""
    missing: str | None
    """Why they are not."""
    no_reference: str | None
    """Why there is no full embedding; None if there is one."""

    @classmethod
    def of(
        cls,
        run: Run,
        folder: Path,
        recommend: Recommend,
        *,
        reference: bool = True,
        watched: Watched = unwatched,
    ) -> RunComparison:
        """Evaluate a run in a folder and, with `reference`, a full embedding.

        That is trained unless its metrics are saved in the folder.
        """
        try:
            data = RunData.of(run)
        except CelrecError as error:
            return cls([], None, str(error).rstrip("."), "there are no data to train it on")
        if not len(data.test):
            return cls([], None, "the run has no test rows", "there are no test data")
        evaluator = Evaluator(run.plan, data)
        own = evaluator.of_model(run.model, recommend)
        found = [*baselines(run.plan, data, evaluator)]
        why: str | None = None
        if run.plan.embedding == FULL:
            why = "this run is a full embedding itself"
        elif not reference:
            why = "it was left out (--no-reference)"
        else:
            kept = Reference(folder, data)
            figures = kept.kept(evaluator)
            if figures is None:
                figures = kept.train(run.plan, evaluator, recommend, watched)
            hint = "a row for each id, the same model, data and settings"
            found.append(ComparedModel(REFERENCE, "Full embedding", hint, figures))
        found.append(ComparedModel(RUN, f"{method_name(run.plan)}, this run", "", own))
        return cls(found, evaluator, None, why)

    def kind(self, kind: str) -> ComparedModel | None:
        """The model of a kind, if there is one."""
        return next((one for one in self.compared_models if one.kind == kind), None)


@dataclass(frozen=True, slots=True)
class Contents:
    """A run with all that a page shows of it."""

    run: Run
    comparison: RunComparison
    online: dict[str, Measured] | None
    """For an online run, the metrics of predictions before learning."""
    validation_records: dict[str, list[ValidationRecord]]
    memory: MemoryBill
    views: list[ClusterView]

    @classmethod
    def of(cls, run: Run, folder: Path, comparison: RunComparison) -> Contents:
        """Of a run in a folder."""
        learned = None if comparison.evaluator is None else comparison.evaluator.learned
        return cls(
            run=run,
            comparison=comparison,
            online=online_record(folder),
            validation_records=read_validation_records(folder),
            memory=MemoryBill.of(run.model, run.result),
            views=cluster_views(run, learned),
        )


def cluster_views(
    run: Run, learned: Interactions | None, most_clusters: int = 1000, most_members: int = 30_000
) -> list[ClusterView]:
    """The views of all levels of clustered tables, items first, which share the limits."""
    compressed = compressed_sides(run)
    levels = [
        (side, level)
        for side in ("items", "users", *run.columns)
        if side in compressed
        for level in range(1, count_levels(run, side) + 1)
    ]
    views = (
        ClusterView.of(
            run,
            side,
            learned,
            level,
            most_clusters=max(most_clusters // len(levels), 1),
            most_members=most_members // len(levels),
        )
        for side, level in levels
    )
    return [view for view in views if view is not None]


METRICS = {"mse": "MSE", "auc": "AUC"}


class Card(NamedTuple):
    """A number, its name, and a note on it."""

    name: str
    value: str
    note: str


def cards(contents: Contents) -> list[Card]:
    """The cards of a run."""
    return [
        *_accuracy(contents),
        *_before_learning(contents),
        *_memory(contents),
        *_clusters(contents),
    ]


def _accuracy(contents: Contents) -> Iterator[Card]:
    comparison = contents.comparison
    own = comparison.kind(RUN)
    if own is None or comparison.evaluator is None:
        return
    others = [one for kind in (REFERENCE, BIASES, MEANS) if (one := comparison.kind(kind))]
    keys = ((comparison.evaluator.metric, METRICS[comparison.evaluator.metric]),)
    for key, name in (*keys, ("ndcg", f"NDCG@{BEST}")):
        value = value_of(own, key)
        if value is None:
            continue
        note = [
            f"{change(value, base)} against {other.name.lower()}, {figure(base)}"
            for other in others[:1]
            if (base := value_of(other, key))
        ]
        better = "lower is better" if key == "mse" else "higher is better"
        yield Card(f"Test {name}", figure(value), "; ".join(note) or better)


def _before_learning(contents: Contents) -> Iterator[Card]:
    if contents.online is None:
        return
    every = contents.online["all"]
    note = f"of {whole(every.events)} events, each before it was learned"
    if every.auc is not None:
        yield Card("AUC", figure(every.auc), note)
    elif every.mse is not None:
        yield Card("MSE", figure(every.mse), note)


def _memory(contents: Contents) -> Iterator[Card]:
    smaller = contents.memory.smaller
    if smaller is None:
        total = contents.memory.total
        yield Card("Memory", size(total.serving), "nothing is compressed")
        return
    note = f"{size(smaller.serving)} with the index, a full table {size(smaller.full)}"
    if smaller.ratio >= 1:
        yield Card(f"Table of {smaller.side}", f"{times(smaller.ratio)} smaller", note)
    else:
        yield Card(f"Table of {smaller.side}", f"{times(1 / smaller.ratio)} larger", note)


def _clusters(contents: Contents) -> Iterator[Card]:
    if not contents.views:
        return
    view = contents.views[0]
    sizes = sorted(cluster.size for cluster in view.clusters)
    note = f"from {whole(sizes[0])} to {whole(sizes[-1])} {view.side} in each"
    if len(sizes) == 1:
        note = f"with all {whole(view.ids)} {view.side} that share rows"
    yield Card(f"Clusters of {view.side}", whole(view.count), note)


def lead(contents: Contents) -> str:
    """The memory saved, and the share of a full table's gain; empty if nothing was compressed."""
    smaller = contents.memory.smaller
    if smaller is None or smaller.ratio < 1:
        return ""
    words = (
        f"A full table of {smaller.side} would be {times(smaller.ratio)} as large, index included: "
        f"{size(smaller.full)} instead of {size(smaller.serving)}."
    )
    return f"{words} {_gain_kept(contents)}".rstrip()


def _gain_kept(contents: Contents) -> str:
    comparison = contents.comparison
    own, full = comparison.kind(RUN), comparison.kind(REFERENCE)
    plain = comparison.kind(BIASES) or comparison.kind(MEANS)
    if own is None or full is None or plain is None or comparison.evaluator is None:
        return ""
    values = [value_of(one, comparison.evaluator.metric) for one in (own, full, plain)]
    if None in values:
        return ""
    sign = -1 if comparison.evaluator.metric == "mse" else 1
    mine, most, least = (sign * value for value in values if value is not None)
    if most <= least:
        return f"A full table does no better than {plain.name.lower()} here."
    if mine >= most:
        return "This run predicts better than a full table does."
    if mine <= least:
        return f"This run predicts no better than {plain.name.lower()} alone."
    share = (mine - least) / (most - least)
    return f"This run has {100 * share:.0f} % of what a full table gains over {plain.name.lower()}."
