"""The methods of the paper as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celrec.experiments.trial import Trial
from celrec.experiments.trial_table import Entry
from celrec.training.plan import Plan


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method at several sizes."""

    label: str
    embedding: str | None
    """With the sizes of the columns; None: there are none but 100 %."""
    whole: Mapping[str, Any] | None = None
    """What the plan says under 100 %, beside the middle size; None if nothing stands there."""


METHODS = (
    MethodRow("Vanilla", None, {"embedding": "full", "compression": "100%"}),
    MethodRow("eTree", "etree", {"embedding": "etree-leaves"}),
    MethodRow("JNKM", "jnkm", {"embedding": "jnkm-leaves"}),
    MethodRow("Modulo", "modulo"),
    MethodRow("BH", "bh"),
    MethodRow("BH, binary ids", "bh-ids"),
    MethodRow("AE", "ae"),
    MethodRow("HashGNN", "hashgnn"),
    MethodRow("PreHash K=4", "prehash4"),
    MethodRow("PreHash K=M", "prehash"),
    MethodRow("CEL", "cel", {"embedding": "cel", "personalise": "all"}),
    MethodRow("CEL-Lite", "cel-lite", {"embedding": "cel-lite", "personalise": "20"}),
)


def method_entries(
    data: str,
    sizes: Mapping[str, str],
    paper: Mapping[str, Sequence[float | None]],
    rows: Sequence[MethodRow] = METHODS,
    *,
    model: str,
    folds: int = 5,
) -> list[Entry]:
    """Every method at 100 % and at the sizes, which have names; the middle one is tuned at.

    `paper` has its numbers for each label, at 100 % and at each size.
    """
    middle = list(sizes.values())[len(sizes) // 2]
    entries = []
    for row in rows:
        theirs = dict(zip(("100 %", *sizes), paper.get(row.label, ()), strict=False))
        columns: dict[str, Plan] = {}
        if row.whole is not None:
            told = {"model": model, "compression": middle, **row.whole}
            columns["100 %"] = Plan(**told)
        if row.embedding is not None:
            for name, size in sizes.items():
                columns[name] = Plan(model=model, embedding=row.embedding, compression=size)
        # What is tuned is the method with nothing besides.
        tuned = columns.get(list(sizes)[len(sizes) // 2], columns.get("100 %"))
        for name, plan in columns.items():
            entries.append(
                Entry(
                    row.label,
                    f"{data} {name}",
                    Trial(data, plan),
                    theirs.get(name),
                    None if tuned is None else Trial(data, replace(tuned, personalise="none")),
                    folds,
                )
            )
    return entries
