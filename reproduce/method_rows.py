"""The methods of the paper as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celrec.config.plan import Plan
from reproduce.trial import Trial, trial_plan
from reproduce.trial_table import Entry


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method at several sizes."""

    label: str
    embedding: str | None
    """With the sizes of the columns; None: there are none but 100 %."""
    whole: Mapping[str, Any] | None = None
    """What the plan says under 100 %, beside the middle size; None if nothing stands there."""
    sized: Mapping[str, Any] = field(default_factory=dict)
    """What else the plan says at the sizes."""


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
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    tuning: Mapping[str, Mapping[str, Any]] | None = None,
    further: Sequence[float] = (),
) -> list[Entry]:
    """Every method at 100 % and at the sizes, which have names.

    It is tuned at 100 %, where many ids have rows of their own, and at the middle size for all
    sizes. `paper` has its numbers for each label, at 100 % and at each size, and `settings` what
    else some of them are told: see `Trial.having`. What is tuned are penalties, and `further`
    ones, unless `tuning` says otherwise, in the words of `Entry`.
    """
    middle = list(sizes.values())[len(sizes) // 2]
    entries = []
    for row in rows:
        theirs = dict(zip(("100 %", *sizes), paper.get(row.label, ()), strict=False))
        columns: dict[str, Plan] = {}
        if row.whole is not None:
            told = {"model": model, "compression": middle, **row.whole}
            columns["100 %"] = trial_plan(**told)
        if row.embedding is not None:
            for name, size in sizes.items():
                told = {"model": model, "compression": size, **row.sized}
                columns[name] = trial_plan(embedding=row.embedding, **told)
        for name, plan in columns.items():
            trial = Trial(data, plan)
            for setting, value in (settings or {}).get(row.label, {}).items():
                trial = trial.having(setting, value)
            tuned = trial if name == "100 %" else trial.having("plan.compression", middle)
            chosen = {"further": further, **(tuning or {}).get(row.label, {})}
            place = (row.label, f"{data} {name}", trial, theirs.get(name), tuned, folds)
            entries.append(Entry(*place, **chosen))
    return entries
