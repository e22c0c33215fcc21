"""What an experiment has to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows of text under headers.

    >>> print(ResultTable(("method", "MSE"), [("CEL", "0.77")], caption="Ours").markdown())
    Ours
    <BLANKLINE>
    | method | MSE  |
    |--------|------|
    | CEL    | 0.77 |
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """A table that reads well as it is, too."""
        lines = [list(self.headers), *map(list, self.rows)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.headers))]
        told = [
            "| "
            + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
            + " |"
            for line in lines
        ]
        told.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        caption = [self.caption, ""] if self.caption else []
        return "\n".join([*caption, *told])


@dataclass(frozen=True, slots=True)
class Report:
    """Tables, figures by the names of their files, and what is to be said of them."""

    title: str
    tables: Sequence[ResultTable] = ()
    figures: Sequence[str] = ()
    notes: Sequence[str] = ()
    missing: int = 0
    """How many cells are not finished yet."""

    def markdown(self) -> str:
        """The whole of it."""
        parts = [f"## {self.title}"]
        if self.missing:
            parts.append(f"**Not finished: {self.missing:,} cells are missing.**")
        parts += [table.markdown() for table in self.tables]
        parts += [f"![{self.title}]({name})" for name in self.figures]
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"
