"""`celrec reproduce`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Tables and figures, or all; none: list them."),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="The folder of the results; what it holds is not done again.")
    ] = Path("results"),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="One fold, few steps, nothing tuned; kept apart, in RESULTS/quick."
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(help="How many cells run side by side, a thread each.")
    ] = 2,
    show: Annotated[
        bool, typer.Option("--show", help="Show what there is, and train nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make tables and figures of the paper anew, and show them beside the paper's numbers.

    Finished cells are kept at once: stop it at any time, and give the same command again.

    Example: celrec reproduce table2-nmf --quick
    """
    from celrec.cli._reproducing import reproducing
    from reproduce.registry import NAMES, find_experiment
    from reproduce.runner import Runner

    if not names:
        for name in NAMES:
            typer.echo(f"{name:14}  {find_experiment(name).title}")
        return
    asked = [name for given in names for name in (NAMES if given == "all" else [given])]
    experiments = [find_experiment(name) for name in dict.fromkeys(asked)]
    runner = Runner(results, quick=quick, workers=workers)
    for experiment in experiments:
        if not show:
            with reproducing() as tell:
                runner.run(experiment, tell)
        report = runner.report(experiment)
        if as_json:
            typer.echo(json.dumps({"name": experiment.name, **asdict(report)}))
        else:
            typer.echo(report.markdown())
