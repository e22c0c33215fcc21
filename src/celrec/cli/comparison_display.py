"""The progress and the table of a comparison, and descriptions of logs, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from celrec.cli.terminal import facts_table, progress_bar, ruled_table
from celrec.config.plan import Plan
from celrec.data.description import Description
from celrec.embeddings.registry import METHODS
from celrec.evaluation.comparison import CLUSTERED, Comparison, ComparisonRow
from celrec.offline.solver import ValidationRecord, Watcher

_WIDTH = 118
"""Of the table, which the terminal may wrap, so that nothing is cut."""


@contextmanager
def comparing(comparison: Comparison) -> Iterator[Callable[[int, Plan], Watcher]]:
    """A bar that shows the cell and the step of its training."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with progress_bar(*columns) as bar:
        task = bar.add_task("", total=comparison.size)

        def begin(number: int, plan: Plan) -> Watcher:
            bar.update(task, completed=number)

            def watch(stage: str, record: ValidationRecord) -> None:
                text = f"{plan.embedding} {plan.compression}, {stage}: step {record.step:,}"
                bar.update(task, description=text)

            return watch

        yield begin


def show_methods() -> None:
    """Print the name and the summary of every embedding method."""
    known = {name: method.summary for name, method in METHODS.items()}
    for name, summary in {**known, "prehashK": "mixtures of K rows"}.items():
        typer.echo(f"{name:12}  {summary}")


def show_comparison(data: str, plan: Plan, rows: Sequence[ComparisonRow]) -> None:
    """Print one table, and which methods are ahead of CEL."""
    metric = rows[0].metric.upper()
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH)
    folds = max(one.folds for one in rows)
    levels = f", {plan.levels} levels of CEL" if plan.levels > 1 else ""
    title = f"{plan.model} on {escape(data)}, {plan.side} compressed{levels}, {folds} test part(s)"
    console.print(f"[bold]{title}[/]")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header in ("compression", "embedding", "ticks"):
        table.add_column(header, no_wrap=True)
    numbers = ("rows", f"test {metric}", "cold", "warm", "table", "index", "serving", "training")
    for header in (*numbers, "time", "CEL ≤"):
        table.add_column(header, justify="right", no_wrap=True)
    by_size = list(dict.fromkeys(one.compression for one in rows))
    for size in by_size:
        mine = [one for one in rows if one.compression == size]
        best = min((one.mean for one in mine), key=lambda mean: mean if metric == "MSE" else -mean)
        for one in mine:
            table.add_row(*_row(one, one.mean == best))
        table.add_section()
    console.print(table)
    console.print(
        "ticks: low time, low memory, incremental. Bytes are of the compressed tables; time is "
        "relative to the full embedding. [bold]Bold[/]: best at this compression. CEL ≤: the best "
        "result of CEL here with no more bytes for serving."
    )
    for size in by_size:
        verdict = _verdict(size, [one for one in rows if one.compression == size])
        if verdict is not None:
            console.print(verdict)


def _row(one: ComparisonRow, best: bool) -> list[str]:
    spread = "" if one.error is None else f" ± {one.error:.4f}"
    mean = f"{one.mean:.4f}{spread}"
    over = f" (×{one.overrun:.2f})" if one.overrun > 1 else ""
    sizes = (one.table, one.index, one.serving, one.training)
    instead = "" if one.clustered_instead is None else f"{one.clustered_instead:.4f}"
    return [
        one.compression,
        one.embedding,
        one.ticks,
        f"{one.rows:,.0f}{over}",
        f"[bold]{mean}[/]" if best else mean,
        *("" if part is None else f"{part:.4f}" for part in (one.cold, one.warm)),
        *map(_bytes, sizes),
        "" if one.relative is None else f"{one.relative:.2f}",
        instead,
    ]


def _bytes(size: float) -> str:
    for unit in ("", "k", "M", "G"):
        if size < 9_999.5:
            return f"{size:,.0f}{unit}"
        size /= 1000
    return f"{size:,.0f}T"


def _verdict(size: str, rows: Sequence[ComparisonRow]) -> str | None:
    """The methods ahead of CEL at a compression, and at equal bytes; None without CEL."""
    ours = [one for one in rows if one.embedding in CLUSTERED]
    rivals = [one for one in rows if one.embedding not in CLUSTERED]
    if not ours or not rivals:
        return None
    best = ours[0] if len(ours) == 1 or ours[0].better(ours[1].mean) else ours[1]
    ahead = [one.embedding for one in rivals if one.better(best.mean)]
    dearer = [
        one.embedding
        for one in rivals
        if one.clustered_instead is None or one.better(one.clustered_instead)
    ]
    return (
        f"{size}: ahead of CEL with these rows: {', '.join(ahead) or 'none'}; with CEL at no "
        f"more bytes: {', '.join(name for name in ahead if name in dearer) or 'none'}"
    )


def show_ranking(ranking: dict[str, Any]) -> None:
    """Print the metrics of recommended lists."""
    limit = ranking["relevant_from"]
    relevant = "all test rows" if limit is None else f"test rows with a target from {limit:.4g} on"
    slices = ("all", "cold", "warm")
    table = ruled_table(f"best {ranking['k']}", *slices, numbers=slices)
    for metric in ranking["all"]:
        values = (ranking[name][metric] for name in slices)
        table.add_row(metric, *map(_number, values))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\nranking of unseen items; relevant are {relevant}")
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


_BAR = 30  # letters


def show_description(name: str, about: Description) -> None:
    """Print `about` as tables with bars."""
    console = Console(highlight=False)
    console.print(Text(name, style="bold"))  # a name is no markup
    console.print(_facts(about))
    console.print(_histogram(about))
    console.print(_cold(about))
    console.print(_popularity(about))


def _facts(about: Description) -> Table:
    table = facts_table()
    table.add_row("interactions", f"{about.rows:,}")
    table.add_row("users", f"{about.users:,}  ({about.rows / about.users:,.1f} interactions each)")
    table.add_row("items", f"{about.items:,}  ({about.rows / about.items:,.1f} interactions each)")
    table.add_row("density", f"{about.density:.4%}")
    table.add_row("repeated pairs", f"{about.repeated_pairs:,}")
    if about.dropped:
        table.add_row("rows left out", f"{about.dropped:,}")
    span = f"{about.target_min:g} … {about.target_max:g}"
    table.add_row("target", f"{span}, mean {about.target_mean:.4f} ± {about.target_std:.4f} (sd)")
    table.add_row("time", f"{about.first} … {about.last}" if about.first else "no timestamps")
    table.add_row("user features", ", ".join(about.user_features) or "none")
    table.add_row("item features", ", ".join(about.item_features) or "none")
    return table


def _histogram(about: Description) -> Table:
    table = _bars("target", "rows")
    most = max(count for _, _, count in about.histogram)
    for low, high, count in about.histogram:
        label = f"{low:g}" if low == high else f"{low:.3g} … {high:.3g}"
        table.add_row(label, f"{count:,}", f"{count / about.rows:.1%}", _bar(count / most))
    return table


def _cold(about: Description) -> Table:
    table = ruled_table("interactions", "users", "", "items", "", numbers=("users", "", "items"))
    for limit, users in about.cold_users.items():
        items = about.cold_items[limit]
        shares = f"{users / about.users:.1%}", f"{items / about.items:.1%}"
        table.add_row(f"at most {limit}", f"{users:,}", shares[0], f"{items:,}", shares[1])
    return table


def _popularity(about: Description) -> Table:
    table = _bars("most popular items", "interactions")
    for share, reached in about.popularity.items():
        items = max(round(share * about.items), 1)
        table.add_row(f"{share:.0%}", f"{items:,} items", f"{reached:.1%}", _bar(reached))
    return table


def _bars(first: str, second: str) -> Table:
    table = ruled_table(first, second, "", numbers=(second, ""))
    table.add_column("", no_wrap=True)
    return table


def _bar(share: float) -> str:
    return f"[cyan]{'█' * max(round(share * _BAR), 1 if share else 0)}[/]"
