"""What the tables of a model take, and what full ones would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celrec.training.model import Model

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
