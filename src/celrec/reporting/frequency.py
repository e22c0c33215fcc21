"""Pictures of metrics by frequency, and of the memory of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from celrec.recommender.model import Model
from celrec.reporting.drawing import Axis, Sheet, clipped, element, path, picture, rules
from celrec.reporting.wording import figure, size, whole

_FIRST = (0, 1, 6, 11, 21, 51, 101, 201, 501, 1001, 5001, 20001)
"""The lowest number of training interactions in each class; the last class has no limit."""


@dataclass(frozen=True, slots=True)
class Frequency:
    """Test rows in classes by the training interactions of their user, or of their item.

    >>> frequency = Frequency.of(np.array([0, 3, 300]), np.array([1, 2, 2, -1]))
    >>> frequency.labels, frequency.ids, frequency.rows
    (['0', '1–5', '201–500'], [1, 1, 1], [1, 1, 2])
    >>> frequency.each(lambda rows: float(rows.sum()))
    [1.0, 1.0, 2.0]
    """

    labels: list[str]
    ids: list[int]
    """The number of ids in each class, without unseen ids."""
    rows: list[int]
    """The number of test rows in each class."""
    class_of_row: NDArray[np.int64]

    @classmethod
    def of(cls, counts: NDArray[np.int64], dense: NDArray[np.integer]) -> Frequency:
        """From the training interactions of each id, and the id of each test row, −1 if unseen.

        Empty classes are left out.
        """
        seen = np.where(dense < 0, 0, np.append(counts, 0)[dense])
        ids = np.bincount(_class(counts), minlength=len(_FIRST))
        rows = np.bincount(_class(seen), minlength=len(_FIRST))
        kept = np.flatnonzero((ids > 0) | (rows > 0))
        number = np.zeros(len(_FIRST), np.int64)
        number[kept] = np.arange(len(kept))
        labels = [_label(first, after) for first, after in pairwise((*_FIRST, None))]
        return cls(
            [labels[place] for place in kept],
            ids[kept].tolist(),
            rows[kept].tolist(),
            number[_class(seen)],
        )

    def each(self, metric: Callable[[NDArray[np.bool_]], float | None]) -> list[float | None]:
        """A metric of the test rows in each class, None for a class without rows."""
        masks = (self.class_of_row == number for number in range(len(self.labels)))
        return [metric(mask) if mask.any() else None for mask in masks]


def _class(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.searchsorted(_FIRST, counts, side="right") - 1


def _label(first: int | None, after: int | None) -> str:
    if after is None:
        return f"> {first - 1:,}" if first else ""
    return f"{first:,}" if after - 1 == first else f"{first:,}–{after - 1:,}"


_TOP, _HEIGHT, _STRIP = 24.0, 200.0, 44.0


def frequency_picture(
    metric: str, who: str, frequency: Frequency, curves: Mapping[str, Sequence[float | None]]
) -> Markup:
    """Curves by kind, and below them the number of test rows in each class."""
    label = f"{metric} by the number of training interactions of the {who}"

    def draw(sheet: Sheet) -> tuple[float, Iterable[Markup]]:
        return _draw(sheet, metric, who, frequency, curves)

    return picture(label, draw)


def _draw(
    sheet: Sheet,
    metric: str,
    who: str,
    frequency: Frequency,
    curves: Mapping[str, Sequence[float | None]],
) -> tuple[float, list[Markup]]:
    count = len(frequency.labels)
    step = (sheet.right - sheet.left) / max(count, 1)
    middles = [sheet.left + (number + 0.5) * step for number in range(count)]
    values = [value for curve in curves.values() for value in curve if value is not None]
    upright = Axis.over(values, _TOP + _HEIGHT, _TOP)
    parts = [*rules(sheet, upright)]
    parts.append(element("text", metric, x=sheet.left - 44, y=_TOP - 12, class_="label"))
    for kind, curve in reversed(list(curves.items())):  # the first one on top
        points = [
            None if value is None else (middle, upright.at(value))
            for middle, value in zip(middles, curve, strict=True)
        ]
        parts.append(element("path", d=path(points), class_=f"curve {kind}"))
        for label, value, point in zip(frequency.labels, curve, points, strict=True):
            if point is not None:
                words = element("title", f"{label} interactions: {metric} {figure(value)}")
                parts.append(element("circle", words, cx=point[0], cy=point[1], r=4, class_=kind))
    top = _TOP + _HEIGHT + 34
    most = max(frequency.rows, default=0) or 1
    base = top + _STRIP
    parts.append(element("text", "test rows", x=sheet.left, y=top - 8, class_="label"))
    parts.append(element("line", x1=sheet.left, x2=sheet.right, y1=base, y2=base, class_="rule"))
    for middle, rows, label in zip(middles, frequency.rows, frequency.labels, strict=True):
        height = _STRIP * rows / most
        parts.append(
            element(
                "rect",
                element("title", f"{label} interactions: {whole(rows)} test rows"),
                x=middle - 0.32 * step,
                y=base - height,
                width=0.64 * step,
                height=height,
                class_="rows",
            )
        )
    tilted = sheet.narrow and count > 4
    for middle, label in zip(middles, frequency.labels, strict=True):
        place = f"rotate(-42 {middle:.1f} {base + 16:.1f})" if tilted else None
        parts.append(
            element(
                "text",
                label,
                x=middle + (6 if tilted else 0),
                y=base + 16,
                transform=place,
                class_=f"tick {'end' if tilted else 'middle'}",
            )
        )
    longest = max(map(len, frequency.labels), default=0)
    below = base + (28 + 4.4 * longest if tilted else 38)
    middle = (sheet.left + sheet.right) / 2
    name = f"training interactions of the {who}, cold to warm"
    parts.append(element("text", name, x=middle, y=below, class_="label middle"))
    return below + 8, parts


_NUMBER = 4  # bytes of a number in a full table


@dataclass(frozen=True, slots=True)
class TableBill:
    """The bytes of one table and its index."""

    side: str
    ids: int
    rows: int
    numbers: int
    """The length of a row."""
    table: int
    index: int
    training: int
    """Rows and index while training, without the optimiser's state."""
    full: int
    """A full table: one row per id, and one for unseen ids."""

    @property
    def serving(self) -> int:
        """Table and index."""
        return self.table + self.index

    @property
    def ratio(self) -> float:
        """The compression ratio: the bytes of a full table over its own."""
        return self.full / self.serving

    @property
    def compressed(self) -> bool:
        """Whether it differs from a full table."""
        return self.serving != self.full


@dataclass(frozen=True, slots=True)
class MemoryBill:
    """The bytes of all tables and of the network."""

    tables: list[TableBill]
    network: int

    @classmethod
    def of(cls, model: Model, noted: Mapping[str, Any]) -> MemoryBill:
        """The bytes of a model, given the result that its run recorded."""
        tables = model.whole_tables
        table_bytes = sum(_bytes(table) for table in tables.values())
        in_training = noted.get("training_bytes") or {}
        bills = []
        for side, table in tables.items():
            memory = table.memory()
            bills.append(
                TableBill(
                    side,
                    table.num_embeddings,
                    table.num_rows,
                    table.embedding_dim,
                    memory.table,
                    memory.index,
                    int(in_training.get(side, table.memory(training=True).total)),
                    (table.num_embeddings + 1) * table.embedding_dim * _NUMBER,
                )
            )
        return cls(bills, _bytes(model) - table_bytes)

    @property
    def smaller(self) -> TableBill | None:
        """All compressed tables together; None if there are none."""
        some = [bill for bill in self.tables if bill.compressed]
        return _together(some) if some else None

    @property
    def total(self) -> TableBill:
        """All tables together."""
        return _together(self.tables)


def _together(bills: list[TableBill]) -> TableBill:
    sums = [
        sum(getattr(bill, name) for bill in bills)
        for name in ("ids", "rows", "numbers", "table", "index", "training", "full")
    ]
    return TableBill(" and ".join(bill.side for bill in bills), *sums)


def _bytes(module: Any) -> int:
    return sum(tensor.nbytes for tensor in module.state_dict().values())


_BAR, _GROUP = 18.0, 78.0


def memory_picture(bill: MemoryBill) -> Markup:
    """For each table a bar of its bytes, rows and index, and one of a full table."""
    label = "; ".join(
        f"{one.side}: {size(one.serving)}, a full table {size(one.full)}" for one in bill.tables
    )
    most = max(max(one.full, one.serving) for one in bill.tables)

    def draw(sheet: Sheet) -> tuple[float, Iterable[Markup]]:
        parts = []
        room = sheet.right - 100
        for number, one in enumerate(bill.tables):
            top = 18 + number * _GROUP
            scale = room / most
            name = one.side if one.compressed else f"{one.side}, not compressed"
            name = clipped(name, sheet.letters(room, 14))
            parts.append(element("text", name, x=0, y=top - 4, class_="name strong"))
            table, index = one.table * scale, one.index * scale
            parts += [
                _bar(0, top + 4, table, "run", f"table: {one.table:,} bytes"),
                _bar(table, top + 4, index, "index", f"index: {one.index:,} bytes"),
                _bar(0, top + 27, one.full * scale, "full", f"full table: {one.full:,} bytes"),
                _value(max(table + index, 2), top + 18, f"{size(one.serving)}"),
                _value(one.full * scale, top + 41, f"{size(one.full)}"),
            ]
        return 18 + _GROUP * len(bill.tables) - 18, parts

    return picture(f"Bytes for serving. {label}", draw, left=0)


def _bar(x: float, y: float, width: float, kind: str, label: str) -> Markup:
    title = element("title", label)
    return element("rect", title, x=x, y=y, width=max(width, 1), height=_BAR, class_=f"bar {kind}")


def _value(x: float, y: float, words: str) -> Markup:
    return element("text", words, x=x + 8, y=y, class_="value")
