"""A run as one HTML page."""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from celrec.reporting.cards import METRICS, cards, lead
from celrec.reporting.compared_models import MEANS, RUN, comparison_picture
from celrec.reporting.contents import Contents
from celrec.reporting.evaluator import BEST, Evaluator
from celrec.reporting.figure_table import predicting, recommending, value_of
from celrec.reporting.frequency import Frequency, frequency_picture
from celrec.reporting.learning_picture import stage_words
from celrec.reporting.memory import memory_picture
from celrec.reporting.numbers import figure, size, times, whole
from celrec.reporting.tree_picture import view_words
from celrec.reporting.wording import headline, method_name, plan_words

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
    """The page, with all that it needs inside; the same for the same contents."""
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
        **_what(contents),
        **_how_well(contents),
        **_by_frequency(contents),
        **_memory(contents),
        "stages": [
            stage_words(name, validation_records, contents.run)
            for name, validation_records in contents.validation_records.items()
        ],
        "no_curve": _no_curve(contents),
        "views": [view_words(view) for view in contents.views],
        "no_clusters": f"Nothing here is in clusters: {method_name(contents.run.plan)} "
        "shares no rows in clusters that could be told apart.",
    }
    return environment.get_template("page.html").render(context)


def _what(contents: Contents) -> dict[str, Any]:
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


def _how_well(contents: Contents) -> dict[str, Any]:
    standing, evaluator = contents.standing, contents.standing.evaluator
    found: dict[str, Any] = {
        "missing": standing.missing,
        "no_reference": standing.no_reference if standing.compared_models else None,
        "online": contents.online,
        "contenders": False,
    }
    if evaluator is None:
        return found
    metric = evaluator.metric
    dots = [
        (one.kind, one.name, value)
        for one in standing.compared_models
        if (value := value_of(one, metric)) is not None
    ]
    better = "lower is better" if metric == "mse" else "higher is better"
    picture = comparison_picture(f"test {METRICS[metric]}", better, dots) if dots else ""
    return found | {
        "contenders": True,
        "predicting": predicting(standing.compared_models, metric),
        "recommending": recommending(standing.compared_models),
        "contender_picture": picture,
        "tested": _tested(evaluator),
        "ranked": _ranked(evaluator),
    }


def _tested(evaluator: Evaluator) -> str:
    words = (
        f"Measured on {whole(len(evaluator.test))} test interactions that nothing was learned from"
    )
    if len(evaluator.events) > len(evaluator.test):
        words += ", each beside an item drawn at random that the user had nothing to do with"
    return f"{words}."


def _ranked(evaluator: Evaluator) -> str:
    limit = evaluator.liked_from
    liked = (
        "all their test items" if limit is None else f"test items with a target from {limit:.4g} on"
    )
    return (
        f"The best {BEST} items that a user had not seen, for {whole(len(evaluator.asked))} users. "
        f"They like {liked}; means are over users who like any."
    )


def _no_curve(contents: Contents) -> str:
    if "events" in contents.run.result:
        return "A stream is learned in one pass, and there are no validation data to judge by."
    return "The run has no record of its training."


def _by_frequency(contents: Contents) -> dict[str, Any]:
    standing, evaluator = contents.standing, contents.standing.evaluator
    if evaluator is None:
        return {"slices": []}
    metric = METRICS[evaluator.metric]
    shown = standing.compared_models[::-1]
    slices = []
    for who, frequency, attribute in (
        ("item", evaluator.items, "by_items"),
        ("user", evaluator.users, "by_users"),
    ):
        curves = {one.kind: getattr(one.figures, attribute) for one in shown}
        # Means are so far off that they would press all others together.
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
