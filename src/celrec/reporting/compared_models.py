"""The models that a page compares: baselines, a picture and tables of their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from celrec.config.plan import Plan
from celrec.recommender.bias_model import BiasModel
from celrec.reporting.drawing import Axis, Sheet, clipped, element, picture
from celrec.reporting.evaluator import BEST, Evaluator, Figures, RunData, item_means, same_for_all
from celrec.reporting.wording import figure

RUN, REFERENCE, BIASES, MEANS = "run", "full", "biases", "means"
"""The kinds of models, which are also their classes in the style sheet."""
_STRENGTH = 5.0  # of the regularisation of biases, without validation data to choose it


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """A model and its metrics."""

    kind: str
    name: str
    hint: str
    """A description of a few words."""
    figures: Figures


def baselines(plan: Plan, data: RunData, evaluator: Evaluator) -> Iterator[ComparedModel]:
    """Item means, popularity and biases; for implicit feedback popularity alone."""
    counts = evaluator.learned.item_counts
    popular = same_for_all(counts, evaluator.requested, BEST, evaluator.seen)
    if plan.only_positive:
        scores = np.append(counts, 0)[evaluator.events.item]  # the last entry is for unseen items
        figures = evaluator.of_predictions(scores, popular)
        yield ComparedModel(MEANS, "Popularity", "what most users took", figures)
        return
    figures = evaluator.of_predictions(item_means(data.learned, evaluator.events), popular)
    hint = "predicts an item’s mean target, recommends what most users took"
    yield ComparedModel(MEANS, "Item means, popularity", hint, figures)
    strength = _STRENGTH
    if len(data.split.valid):
        strength = BiasModel.tuned(data.split.train, data.split.valid).strength
    biases = BiasModel.fit(data.learned, strength)
    lists = same_for_all(biases.item_bias, evaluator.requested, BEST, evaluator.seen)
    figures = evaluator.of_predictions(biases.predict(evaluator.events), lists)
    hint = "a mean, a number for each user and one for each item"
    yield ComparedModel(BIASES, "Biases", hint, figures)


_ROW = 34.0


def comparison_picture(metric: str, better: str, found: Sequence[tuple[str, str, float]]) -> Markup:
    """A dot for each (kind, name, value); `better` says which direction is better."""
    label = f"{metric}: " + ", ".join(f"{name} {figure(value)}" for _, name, value in found)

    def draw(sheet: Sheet) -> tuple[float, Iterable[Markup]]:
        left = 136.0 if sheet.narrow else 210.0
        right = sheet.right - 30
        own = next((value for kind, _, value in found if kind == RUN), found[0][2])
        along = Axis.over(
            [value for *_, value in found], left, right, most=3 if sheet.narrow else 6
        )
        bottom = 8 + _ROW * len(found)
        parts = []
        for tick in along.ticks:
            place = along.at(tick)
            parts.append(element("line", x1=place, x2=place, y1=4, y2=bottom, class_="rule"))
            parts.append(
                element("text", along.label(tick), x=place, y=bottom + 16, class_="tick middle")
            )
        place = along.at(own)
        parts.append(element("line", x1=place, x2=place, y1=4, y2=bottom, class_="own"))
        for number, (kind, name, value) in enumerate(found):
            height, place = 8 + (number + 0.5) * _ROW, along.at(value)
            strong = " strong" if kind == RUN else ""
            shown = clipped(name, sheet.letters(left - 14, 14))
            parts += [
                element("text", shown, x=left - 14, y=height + 4, class_=f"name end{strong}"),
                element(
                    "line", x1=along.at(own), x2=place, y1=height, y2=height, class_=f"stem {kind}"
                ),
                element("circle", cx=place, cy=height, r=6.5, class_=kind),
            ]
            # Beyond the dot, seen from the run, unless there is no room.
            inside = (value < own and place > left + 46) or place > right - 24
            parts.append(
                element(
                    "text",
                    figure(value),
                    x=place + (-13 if inside else 13),
                    y=height + 4,
                    class_=f"value{strong}{' end halo' if inside else ' halo'}",
                )
            )
        middle = (left + right) / 2
        name = f"{metric}, {better}"
        parts.append(element("text", name, x=middle, y=bottom + 36, class_="label middle"))
        return bottom + 44, parts

    return picture(label, draw)


class Column(NamedTuple):
    """A metric."""

    key: str
    name: str
    title: str
    lower: bool
    """Whether lower is better."""


class Cell(NamedTuple):
    """A number, and whether it is the best of its column."""

    value: float | None
    best: bool


class Row(NamedTuple):
    """A model."""

    kind: str
    name: str
    hint: str
    cells: list[Cell]


class FigureTable(NamedTuple):
    """Models in rows, metrics in columns."""

    columns: list[Column]
    rows: list[Row]


_PREDICTING = (
    Column("mse", "MSE", "mean squared error", True),
    Column("mse_cold", "MSE, cold items", "items with at most 20 training interactions", True),
    Column("mse_warm", "MSE, warm items", "items with more than 20 training interactions", True),
    Column("auc", "AUC", "the chance that a 1 is predicted higher than a 0", False),
    Column("auc_cold", "AUC, cold items", "items with at most 20 training interactions", False),
    Column("log_loss", "Log loss", "where all predictions lie between 0 and 1", True),
    Column("conversion_auc", "Conversion AUC", "of the conversions", False),
)
_RECOMMENDING = (
    Column("ndcg", f"NDCG@{BEST}", "hits among recommended items, early ones count more", False),
    Column("ndcg_cold", f"NDCG@{BEST}, cold items", "of cold items alone", False),
    Column("recall", f"Recall@{BEST}", "the share of liked items that were recommended", False),
    Column("mrr", "MRR", "one over the place of the first hit", False),
    Column("hit_rate", "Hit rate", "the share of users with a hit", False),
    Column("coverage", "Coverage", "the share of items recommended to anybody", False),
)


def value_of(compared_model: ComparedModel, key: str) -> float | None:
    """A metric by its name."""
    return {**compared_model.figures.test, **(compared_model.figures.ranking or {})}.get(key)


def predicting(compared_models: Sequence[ComparedModel], metric: str) -> FigureTable:
    """Metrics of predictions, the main one first; of others, no cold and warm items."""
    order = sorted(_PREDICTING, key=lambda column: not column.key.startswith(metric))
    return _table(
        compared_models,
        [one for one in order if one.key.startswith(metric) or not one.name.endswith("items")],
    )


def recommending(compared_models: Sequence[ComparedModel]) -> FigureTable:
    """Metrics of recommendations."""
    return _table(compared_models, _RECOMMENDING)


def _table(compared_models: Sequence[ComparedModel], wanted: Sequence[Column]) -> FigureTable:
    columns, best = [], {}
    for column in wanted:
        values = [value_of(one, column.key) for one in compared_models]
        known = [value for value in values if value is not None]
        if known:
            columns.append(column)
            best[column.key] = min(known) if column.lower else max(known)
    rows = []
    for one in compared_models:
        values = [value_of(one, column.key) for column in columns]
        marks = [
            len(compared_models) > 1 and value is not None and value == best[column.key]
            for value, column in zip(values, columns, strict=True)
        ]
        cells = [Cell(*pair) for pair in zip(values, marks, strict=True)]
        rows.append(Row(one.kind, one.name, one.hint, cells))
    return FigureTable(columns, rows)
