"""`celrec reproduce`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celrec.cli.options import Json
from celrec.errors import CelrecError
from celrec.runtime.extras import require_extra

if TYPE_CHECKING:
    from reproduce.runner import Progress


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Tables and figures, or all; none: list them."),
    ] = None,
    results: Annotated[
        Path,
        typer.Option(help="The folder of the results; cells that it holds are not trained again."),
    ] = Path("results"),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One fold, few steps, no hyperparameter search; kept apart, in RESULTS/quick.",
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(help="How many cells run side by side, a thread each.")
    ] = 2,
    show: Annotated[
        bool, typer.Option("--show", help="Show the results so far, and train nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Reproduce tables and figures of the paper, and show them beside the paper's numbers.

    Finished cells are kept at once: stop it at any time, and give the same command again. It is
    part of the repository, not of the installed package.

    Example: celrec reproduce table2-nmf --quick
    """
    try:
        from reproduce.registry import NAMES, find_experiment
        from reproduce.runner import Runner
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "reproduce":
            raise
        raise CelrecError(
            "reproduce: the paper's experiments are in the repository, not in this package; "
            "clone the repository and run `make install` in it"
        ) from error

    if not names:
        for name in NAMES:
            typer.echo(f"{name:14}  {find_experiment(name).title}")
        return
    requested = [name for given in names for name in (NAMES if given == "all" else [given])]
    experiments = [find_experiment(name) for name in dict.fromkeys(requested)]
    require_extra("reproduce", "report", "matplotlib")
    runner = Runner(results, quick=quick, workers=workers)
    for experiment in experiments:
        if not show:
            with _progress_bar() as update:
                runner.run(experiment, update)
        report = runner.report(experiment)
        if as_json:
            typer.echo(json.dumps({"name": experiment.name, **asdict(report)}))
        else:
            typer.echo(report.markdown())


@contextmanager
def _progress_bar() -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    from celrec.cli.terminal import progress_bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remaining]}"),
    )
    with progress_bar(*columns) as bar:
        task = bar.add_task("", total=None, remaining="")

        def update(progress: Progress) -> None:
            seconds = progress.seconds_left
            remaining = "" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"
            bar.update(
                task,
                description=progress.experiment,
                completed=progress.finished,
                total=progress.named,
                remaining=remaining,
            )

        yield update
