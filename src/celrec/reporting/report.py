"""A run as one HTML page, from a run folder to a file."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from celrec.errors import CelrecError
from celrec.reporting.compared_models import (
    MEANS,
    RUN,
    comparison_picture,
    predicting,
    recommending,
    value_of,
)
from celrec.reporting.contents import (
    METRICS,
    Contents,
    RunComparison,
    Watched,
    cards,
    cluster_views,
    lead,
    unwatched,
)
from celrec.reporting.evaluator import BEST, Evaluator, Recommend
from celrec.reporting.frequency import Frequency, frequency_picture, memory_picture
from celrec.reporting.learning_picture import stage_words
from celrec.reporting.tree_picture import view_words
from celrec.reporting.wording import figure, headline, method_name, plan_words, size, times, whole
from celrec.runs.run_folder import load_run
from celrec.runtime.atomic import atomic_file
from celrec.runtime.extras import require_extra

NAME = "report.html"
"""The default file in the run folder."""
LARGEST = 5_000_000
"""Bytes of a page; clusters and members are left out until it is no larger."""


class Report(NamedTuple):
    """A page that was written."""

    path: Path
    size: int
    """Bytes."""
    comparison: RunComparison

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "report": str(self.path),
            "bytes": self.size,
            "missing": self.comparison.missing,
            "no_reference": self.comparison.no_reference,
            "figures": {one.kind: asdict(one.figures) for one in self.comparison.compared_models},
        }


def write_report(
    folder: str | Path,
    recommend: Recommend,
    *,
    out: str | Path | None = None,
    reference: bool = True,
    watched: Watched = unwatched,
) -> Report:
    """Write the page of a run, whole or not at all; the same run gives the same bytes.

    `recommend` gives the best items of a model. With `reference`, a full embedding is trained for
    comparison, unless its metrics are in the folder already.
    """
    require_extra("report", "report", "jinja2")
    place = Path(folder)
    run = load_run(place)
    path = place / NAME if out is None else Path(out)
    if path.is_dir():
        raise CelrecError(f"out must be a file, not the folder {path}; name one in it")
    if not path.parent.is_dir():
        raise CelrecError(f"out: there is no folder {path.parent}; make it, or name another file")
    comparison = RunComparison.of(run, place, recommend, reference=reference, watched=watched)
    contents = Contents.of(run, place, comparison)
    words = page(contents).encode()
    learned = None if comparison.evaluator is None else comparison.evaluator.learned
    clusters, members = 1000, 30_000
    while len(words) > LARGEST and members:
        clusters, members = clusters // 2, members // 4
        views = cluster_views(run, learned, clusters, members)
        words = page(replace(contents, views=views)).encode()
    with atomic_file(path) as temporary:
        temporary.write_bytes(words)
    return Report(path, len(words), comparison)


_FOLDER = Path(__file__).parent
_SECTIONS = {
    "trained": "Training",
    "accuracy": "Accuracy",
    "learning": "Learning",
    "frequency": "Cold to warm",
    "memory": "Memory",
    "tree": "Splits",
    "clusters": "Clusters",
}


def page(contents: Contents) -> str:
    """The page with its style and script inside; the same for the same contents."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"figure": figure, "whole": whole, "times": times, "exact": repr}
    css, js = ((_FOLDER / name).read_text() for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()
    sections = [(key, name) for key, name in _SECTIONS.items() if contents.views or key != "tree"]
    context = {
        "version": version("celrec"),
        "css": Markup(css),  # noqa: S704  (files of ours)
        "js": Markup(js),  # noqa: S704
        # Nothing is loaded, and no script runs but that of the page.
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "sections": sections,
        **_header(contents),
        **_accuracy(contents),
        **_by_frequency(contents),
        **_memory(contents),
        "stages": [
            stage_words(name, validation_records, contents.run)
            for name, validation_records in contents.validation_records.items()
        ],
        "no_curve": _no_curve(contents),
        "views": [view_words(view) for view in contents.views],
        "no_clusters": f"No table is clustered: {method_name(contents.run.plan)} has no clusters.",
    }
    return environment.get_template("page.html").render(context)


def _header(contents: Contents) -> dict[str, Any]:
    run = contents.run
    facts = plan_words(run)
    name = run.source.get("data") or run.source.get("asked", {}).get("source") or "a stream"
    test = dict(facts).get("Test part")
    words = [str(name), *([f"tested on {test}"] if test else []), f"seed {run.plan.seed}"]
    return {
        "title": f"{name}, {method_name(run.plan)}",
        "eyebrow": " · ".join(words),
        "headline": headline(run),
        "facts": facts,
        "lead": lead(contents),
        "cards": cards(contents),
    }


def _accuracy(contents: Contents) -> dict[str, Any]:
    comparison, evaluator = contents.comparison, contents.comparison.evaluator
    found: dict[str, Any] = {
        "missing": comparison.missing,
        "no_reference": comparison.no_reference if comparison.compared_models else None,
        "online": contents.online,
        "compared": False,
    }
    if evaluator is None:
        return found
    metric = evaluator.metric
    dots = [
        (one.kind, one.name, value)
        for one in comparison.compared_models
        if (value := value_of(one, metric)) is not None
    ]
    better = "lower is better" if metric == "mse" else "higher is better"
    picture = comparison_picture(f"test {METRICS[metric]}", better, dots) if dots else ""
    return found | {
        "compared": True,
        "predicting": predicting(comparison.compared_models, metric),
        "recommending": recommending(comparison.compared_models),
        "comparison_picture": picture,
        "tested": _tested(evaluator),
        "ranked": _ranked(evaluator),
    }


def _tested(evaluator: Evaluator) -> str:
    words = f"Measured on {whole(len(evaluator.test))} test interactions that were not trained on"
    if len(evaluator.events) > len(evaluator.test):
        words += ", each beside a random item that the user has not interacted with"
    return f"{words}."


def _ranked(evaluator: Evaluator) -> str:
    limit = evaluator.relevant_from
    relevant = (
        "all test items of a user" if limit is None else f"items with a target from {limit:.4g} on"
    )
    return (
        f"The best {BEST} unseen items for {whole(len(evaluator.requested))} users. Relevant are "
        f"{relevant}; means are over users with relevant items."
    )


def _no_curve(contents: Contents) -> str:
    if "events" in contents.run.result:
        return "A stream is learned in one pass, without validation data."
    return "The run has no record of its training."


def _by_frequency(contents: Contents) -> dict[str, Any]:
    comparison, evaluator = contents.comparison, contents.comparison.evaluator
    if evaluator is None:
        return {"slices": []}
    metric = METRICS[evaluator.metric]
    shown = comparison.compared_models[::-1]
    slices = []
    for who, frequency, attribute in (
        ("item", evaluator.items, "by_items"),
        ("user", evaluator.users, "by_users"),
    ):
        curves = {one.kind: getattr(one.figures, attribute) for one in shown}
        # Means are so far off that all other curves would be flat.
        drawn = {kind: c for kind, c in curves.items() if kind != MEANS or len(curves) == 2}
        slices.append(
            {
                "who": who,
                "picture": frequency_picture(f"test {metric}", who, frequency, drawn),
                "rows": _slice_rows(frequency, curves),
            }
        )
    kinds = [(one.kind, "This run" if one.kind == RUN else one.name) for one in shown]
    drawn_kinds = [(kind, name) for kind, name in kinds if kind in drawn]
    return {"slices": slices, "kinds": kinds, "drawn": drawn_kinds, "metric_name": metric}


def _slice_rows(
    frequency: Frequency, curves: dict[str, list[float | None]]
) -> list[dict[str, Any]]:
    cells = zip(*curves.values(), strict=True)
    rows = zip(frequency.labels, frequency.ids, frequency.rows, cells, strict=True)
    return [
        {"label": label, "ids": ids, "rows": count, "cells": values}
        for label, ids, count, values in rows
    ]


def _memory(contents: Contents) -> dict[str, Any]:
    bill = contents.memory
    bills: list[Any] = list(bill.tables)
    if len(bills) > 1:
        total = bill.total
        bills.append(
            {
                **{name: getattr(total, name) for name in ("ids", "rows", "table", "index")},
                **{name: getattr(total, name) for name in ("serving", "training", "full", "ratio")},
                "side": "together",
                "numbers": 0,
            }
        )
    smaller = bill.smaller
    words = "No table is compressed: each id has a row."
    if smaller is not None:
        words = (
            f"For serving, {smaller.side} take {size(smaller.serving)} with the index; full tables "
            f"would take {size(smaller.full)}, {times(smaller.ratio)} as much. An optimiser’s "
            "state is not counted."
        )
    return {
        "bills": bills,
        "network": bill.network,
        "memory_words": words,
        "memory_picture": memory_picture(bill),
        "memory_legend": [("run", "rows"), ("index", "index"), ("full", "a full table")],
    }
