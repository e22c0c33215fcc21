"""`celrec frontier`: error against bytes, for celrec and its alternatives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celrec.cli.options import Json
from celrec.errors import CelrecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from celrec.evaluation.frontier import Frontier, FrontierRow

_WIDTH = 118
"""Of the table, which the terminal may wrap, so that nothing is cut."""


def frontier(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, or the name of a data set.")],
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Bytes of users and items together, as in 50kB, or of each id, as in 2B/id; with "
            "commas between them. Twelve, from one byte an id to 64, if not given."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Of cel, kmeans, rq, pq, int8, int4 and full; all if not given."),
    ] = None,
    folds: Annotated[str, typer.Option(help="Test on these folds, as in 1/5 or 1/5,2/5.")] = "1/5",
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Only a random half of the interactions of each user.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(help="The rank of the full fit; that of the preset if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of all that is random.")] = 0,
    out: Annotated[
        Path,
        typer.Option(
            help="Write cells.jsonl, which is resumed from, and frontier.png to this folder."
        ),
    ] = Path("frontier"),
    as_json: Json = False,
) -> None:
    """Draw error against bytes: what is within reach at which size, by celrec and alternatives.

    All compressions of a fold are made of one full fit. Ranks, rows, levels and biases are chosen
    on validation data for each budget and method alike, and shown on test data.

    Example: celrec frontier ml-100k --budgets 1B/id,2B/id,4B/id --methods cel,rq --out picture
    """
    from celrec.config.plan import Plan
    from celrec.data.datasets.library import open_data
    from celrec.data.split import fold_of
    from celrec.data.split import sparse as sparse_half
    from celrec.evaluation.comparison_plot import picture_kind
    from celrec.evaluation.frontier import BUDGETS, OURS, RIVALS, Frontier
    from celrec.evaluation.frontier_plot import draw_frontier

    picture_kind(out / "frontier.png")  # complains before anything is trained
    log = open_data(data)
    found = Frontier(
        sparse_half(log) if sparse else log,
        budgets=BUDGETS if budgets is None else _words("budgets", budgets),
        methods=(OURS, *RIVALS) if methods is None else _words("methods", methods),
        folds=[fold_of(word) for word in _words("folds", folds)],
        name=f"{data}, sparse half" if sparse else data,
        path=out / "cells.jsonl",
        plan=Plan(model="mf", rank=rank, seed=seed),
    )
    with _progress(found) as watch:
        rows = found.run(watch)
    tests = max(row.folds for row in rows)
    title = f"{data}{', sparse half' if sparse else ''}, {tests} test fold{'s' * (tests > 1)}"
    draw_frontier(rows, out / "frontier.png", title)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
    else:
        _show(title, rows, out)


@contextmanager
def _progress(found: Frontier) -> Iterator[Callable[[int, str], None]]:
    """A bar that shows the cell which is being found."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    from celrec.cli.terminal import progress_bar

    text = TextColumn("{task.description}")
    with progress_bar(BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=found.size)
        yield lambda number, name: bar.update(task, completed=number, description=name)


def _show(title: str, rows: Sequence[FrontierRow], out: Path) -> None:
    """Print a row for each budget, a column for each method, and who is ahead of celrec."""
    from rich.console import Console
    from rich.markup import escape

    from celrec.cli.terminal import ruled_table
    from celrec.evaluation.frontier import FULL_FIT, OURS

    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH)
    console.print(f"[bold]{escape(title)}[/]")
    methods = list(dict.fromkeys(row.method for row in rows if row.method != FULL_FIT))
    table = ruled_table("budget", *methods, "bytes of cel", numbers=[*methods, "bytes of cel"])
    for budget in dict.fromkeys(row.budget for row in rows if row.method != FULL_FIT):
        mine = {row.method: row for row in rows if row.budget == budget}
        best = min(row.mean for row in mine.values())
        cells = [_cell(mine.get(method), best) for method in methods]
        size = f"{mine[OURS].size:,.0f}" if OURS in mine else ""
        table.add_row(budget, *cells, size)
    console.print(table)
    whole = [row for row in rows if row.method == FULL_FIT]
    for row in whole:
        console.print(f"full tables: {_error(row)}, {row.size:,.0f} bytes")
    ahead = [row for row in rows if row.ahead is not None and row.ahead > 2]
    names = ", ".join(f"{row.method} at {row.budget}" for row in ahead) or "none"
    if any(row.ahead is not None for row in rows):
        console.print(f"ahead of cel by more than two standard errors: {names}")
    console.print(f"test MSE; [bold]bold[/]: the lowest. Picture: {escape(str(out))}/frontier.png")


def _cell(row: FrontierRow | None, best: float) -> str:
    if row is None:
        return "–"
    return f"[bold]{_error(row)}[/]" if row.mean == best else _error(row)


def _error(row: FrontierRow) -> str:
    return f"{row.mean:.4f}" + ("" if row.error is None else f" ± {row.error:.4f}")


def _words(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise CelrecError(f"{name} must be words with commas between them, not {text!r}")
    return words
