"""The figures of all contenders, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from celrec.reporting.compared_models import ComparedModel
from celrec.reporting.evaluator import BEST


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
    """A contender."""

    kind: str
    name: str
    hint: str
    cells: list[Cell]


class FigureTable(NamedTuple):
    """Contenders in rows, metrics in columns."""

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
    """A figure by its name."""
    return {**compared_model.figures.test, **(compared_model.figures.ranking or {})}.get(key)


def predicting(compared_models: Sequence[ComparedModel], metric: str) -> FigureTable:
    """How far predictions are off, the page's metric first; of others, no cold and warm items."""
    order = sorted(_PREDICTING, key=lambda column: not column.key.startswith(metric))
    return _table(
        compared_models,
        [one for one in order if one.key.startswith(metric) or not one.name.endswith("items")],
    )


def recommending(compared_models: Sequence[ComparedModel]) -> FigureTable:
    """How well recommended items are chosen."""
    return _table(compared_models, _RECOMMENDING)


def _table(compared_models: Sequence[ComparedModel], wanted: Sequence[Column]) -> FigureTable:
    """Only columns in which there is anything."""
    columns, best = [], {}
    for column in wanted:
        values = [value_of(one, column.key) for one in compared_models]
        there = [value for value in values if value is not None]
        if there:
            columns.append(column)
            best[column.key] = min(there) if column.lower else max(there)
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
