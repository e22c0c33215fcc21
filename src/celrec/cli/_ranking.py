"""Recommendations, measured and shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from celrec.data.interactions import Interactions
from celrec.data.reading import read
from celrec.errors import CelrecError
from celrec.evaluation.ranking import Ranking
from celrec.evaluation.relevance import relevant_from
from celrec.serving.top_k import TopK
from celrec.training.run_folder import Run
from celrec.training.seen_file import seen_in


def rank(
    run: Run, test: Interactions, learned: Interactions | None, k: int, relevant: float | None
) -> dict[str, Any]:
    """The `Ranking` of what a run recommends, in all slices, ready for JSON.

    Users have seen what was `learned`, if that is given, else what the run says.
    """
    seen = run.seen
    if learned is not None:
        seen = seen_in(read(learned.to_frame(), like=run.known))
    if seen is None:
        raise CelrecError(
            "k: the run does not tell what users have seen, since an earlier version of celrec "
            "wrote it; train again"
        )
    counts = run.items.get_column("interactions").to_numpy()
    if relevant is None:
        sums = run.items.get_column("mean_target").fill_nan(0).to_numpy() @ counts
        relevant = relevant_from(run.plan, test, float(sums) / max(int(counts.sum()), 1))
    users = np.unique(test.user[test.user >= 0])
    lists = TopK(run.model, counts).recommend(users, k, seen=seen).items
    found = Ranking.by_slice(lists, users, test, counts, relevant_from=relevant, seen=seen)
    return {"k": k, "relevant_from": relevant, **{n: asdict(one) for n, one in found.items()}}


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
