"""The contents of a page: a run, measured and described, and its main numbers as cards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from celrec.data.interactions import Interactions
from celrec.evaluation.prequential import Measured
from celrec.offline.solver import ValidationRecord
from celrec.reporting.cluster_view import ClusterView
from celrec.reporting.compared_models import BIASES, MEANS, REFERENCE, RUN, value_of
from celrec.reporting.evaluator import BEST, online_record, read_validation_records
from celrec.reporting.memory import MemoryBill
from celrec.reporting.run_comparison import RunComparison
from celrec.reporting.wording import change, compressed_sides, figure, size, times, whole
from celrec.runs.run_folder import Run


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
    """The views of all clustered tables, items first; the limits are shared among them."""
    compressed = compressed_sides(run)
    sides = [side for side in ("items", "users", *run.columns) if side in compressed]
    views = (
        ClusterView.of(
            run,
            side,
            learned,
            most_clusters=max(most_clusters // len(sides), 1),
            most_members=most_members // len(sides),
        )
        for side in sides
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
