"""The run in a few sentences and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from celrec.reporting.compared_models import BIASES, MEANS, REFERENCE, RUN
from celrec.reporting.contents import Contents
from celrec.reporting.evaluator import BEST
from celrec.reporting.figure_table import value_of
from celrec.reporting.numbers import change, figure, size, times, whole

METRICS = {"mse": "MSE", "auc": "AUC"}


class Card(NamedTuple):
    """A number, what it is, and what it means."""

    name: str
    value: str
    told: str


def cards(contents: Contents) -> list[Card]:
    """Those that there are for a run."""
    return [
        *_accuracy(contents),
        *_before_learning(contents),
        *_memory(contents),
        *_clusters(contents),
    ]


def _accuracy(contents: Contents) -> Iterator[Card]:
    standing = contents.standing
    own = standing.kind(RUN)
    if own is None or standing.evaluator is None:
        return
    others = [one for kind in (REFERENCE, BIASES, MEANS) if (one := standing.kind(kind))]
    keys = ((standing.evaluator.metric, METRICS[standing.evaluator.metric]),)
    for key, name in (*keys, ("ndcg", f"NDCG@{BEST}")):
        value = value_of(own, key)
        if value is None:
            continue
        told = [
            f"{change(value, base)} against {other.name.lower()}, {figure(base)}"
            for other in others[:1]
            if (base := value_of(other, key))
        ]
        better = "lower is better" if key == "mse" else "higher is better"
        yield Card(f"Test {name}", figure(value), "; ".join(told) or better)


def _before_learning(contents: Contents) -> Iterator[Card]:
    if contents.online is None:
        return
    every = contents.online["all"]
    told = f"of {whole(every.events)} events, each before it was learned"
    if every.auc is not None:
        yield Card("AUC", figure(every.auc), told)
    elif every.mse is not None:
        yield Card("MSE", figure(every.mse), told)


def _memory(contents: Contents) -> Iterator[Card]:
    smaller = contents.memory.smaller
    if smaller is None:
        total = contents.memory.total
        yield Card("Memory", size(total.serving), "nothing is compressed")
        return
    told = f"{size(smaller.serving)} with the index, a full table {size(smaller.full)}"
    if smaller.ratio >= 1:
        yield Card(f"Table of {smaller.side}", f"{times(smaller.ratio)} smaller", told)
    else:
        yield Card(f"Table of {smaller.side}", f"{times(1 / smaller.ratio)} larger", told)


def _clusters(contents: Contents) -> Iterator[Card]:
    if not contents.views:
        return
    view = contents.views[0]
    sizes = sorted(cluster.size for cluster in view.clusters)
    told = f"from {whole(sizes[0])} to {whole(sizes[-1])} {view.side} in each"
    if len(sizes) == 1:
        told = f"with all {whole(view.ids)} {view.side} that share rows"
    yield Card(f"Clusters of {view.side}", whole(view.count), told)


def lead(contents: Contents) -> str:
    """What was saved, and what of a full table's gain is left; empty if nothing was compressed."""
    smaller = contents.memory.smaller
    if smaller is None or smaller.ratio < 1:
        return ""
    words = (
        f"A full table of {smaller.side} would be {times(smaller.ratio)} as large, index included: "
        f"{size(smaller.full)} instead of {size(smaller.serving)}."
    )
    return f"{words} {_kept(contents)}".rstrip()


def _kept(contents: Contents) -> str:
    """How much of what a full table gains over the plainest model the run gains too."""
    standing = contents.standing
    own, full = standing.kind(RUN), standing.kind(REFERENCE)
    plain = standing.kind(BIASES) or standing.kind(MEANS)
    if own is None or full is None or plain is None or standing.evaluator is None:
        return ""
    values = [value_of(one, standing.evaluator.metric) for one in (own, full, plain)]
    if None in values:
        return ""
    sign = -1 if standing.evaluator.metric == "mse" else 1
    mine, most, least = (sign * value for value in values if value is not None)
    if most <= least:
        return f"A full table does no better than {plain.name.lower()} here."
    if mine >= most:
        return "This run predicts better than a full table does."
    if mine <= least:
        return f"This run predicts no better than {plain.name.lower()} alone."
    share = (mine - least) / (most - least)
    return f"This run has {100 * share:.0f} % of what a full table gains over {plain.name.lower()}."
