"""The memory of the tables of a model, compared with full tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from celrec.recommender.model import Model
from celrec.reporting.drawing import Sheet, clipped, element, picture
from celrec.reporting.wording import size

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
