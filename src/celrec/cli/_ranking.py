"""Recommendations that were measured, shown."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def show_ranking(ranking: dict[str, Any]) -> None:
    """Print it."""
    limit = ranking["relevant_from"]
    liked = "all test rows" if limit is None else f"test rows with a target from {limit:.4g} on"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"best {ranking['k']}")
    for name in ("all", "cold", "warm"):
        table.add_column(name, justify="right")
    for metric in ranking["all"]:
        values = (ranking[name][metric] for name in ("all", "cold", "warm"))
        table.add_row(metric, *map(_number, values))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\nranking of unseen items; liked are the items of {liked}")
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
