"""What the tables of a model take, and what full ones would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from celrec.recommender.model import Model
from celrec.reporting.drawing import Sheet, clipped, element, picture
from celrec.reporting.numbers import size

_NUMBER = 4  # bytes of a number in a full table


@dataclass(frozen=True, slots=True)
class TableBill:
    """Bytes of one table, with what leads from ids to rows."""

    side: str
    ids: int
    rows: int
    numbers: int
    """The length of a row."""
    table: int
    index: int
    training: int
    """What it held while it was trained, rows and index; an optimiser's state is not counted."""
    full: int
    """A row for each id, and one for unseen ids."""

    @property
    def serving(self) -> int:
        """Table and index."""
        return self.table + self.index

    @property
    def ratio(self) -> float:
        """How many times as large a full table would be."""
        return self.full / self.serving

    @property
    def compressed(self) -> bool:
        """Whether it is anything but a full table."""
        return self.serving != self.full


@dataclass(frozen=True, slots=True)
class MemoryBill:
    """Bytes of all tables of ids, and of the network on top of them."""

    tables: list[TableBill]
    network: int

    @classmethod
    def of(cls, model: Model, noted: Mapping[str, Any]) -> MemoryBill:
        """Of a model, given what its run noted about training."""
        tables = model.whole_tables
        held = sum(_bytes(table) for table in tables.values())
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
        return cls(bills, _bytes(model) - held)

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
    """For each table what it takes, table and index, and what a full one would take."""
    told = "; ".join(
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
                _told(max(table + index, 2), top + 18, f"{size(one.serving)}"),
                _told(one.full * scale, top + 41, f"{size(one.full)}"),
            ]
        return 18 + _GROUP * len(bill.tables) - 18, parts

    return picture(f"Bytes for serving. {told}", draw, left=0)


def _bar(x: float, y: float, width: float, kind: str, told: str) -> Markup:
    words = element("title", told)
    return element("rect", words, x=x, y=y, width=max(width, 1), height=_BAR, class_=f"bar {kind}")


def _told(x: float, y: float, words: str) -> Markup:
    return element("text", words, x=x + 8, y=y, class_="value")
