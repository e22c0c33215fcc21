"""Bytes as bars."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from celrec.reporting.memory_bill import MemoryBill
from celrec.reporting.picture import Sheet, clipped, picture
from celrec.reporting.svg import element
from celrec.reporting.written_numbers import size

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
