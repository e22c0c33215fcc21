"""`celrec report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from celrec.cli.runs import Json, RunArgument


def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; report.html in the run folder if none.")
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference/--no-reference",
            help="Compare with a full embedding, which is trained once and kept in the run folder.",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a run: how well, how it learned, memory, and its clusters.

    It opens in any browser and needs no network.

    Example: celrec report run
    """
    from rich.console import Console

    from celrec.cli._training import training_progress
    from celrec.inference.top_items import best_items
    from celrec.reporting.report import write_report

    written = write_report(
        run,
        best_items,
        out=out,
        reference=reference,
        watched=training_progress,
    )
    if as_json:
        typer.echo(json.dumps(written.as_dict()))
        return
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if written.standing.missing:
        console.print(f"nothing was measured on test data: {written.standing.missing}")
    console.print(f"{written.path}  ({written.size / 1000:,.0f} kB)")
