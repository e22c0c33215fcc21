"""Experiments, shown to people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from reproduce.runner import Progress


@contextmanager
def reproducing() -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error that shows the cells and an estimate of the time left."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, left="")

        def tell(progress: Progress) -> None:
            seconds = progress.seconds_left
            left = "" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"
            bar.update(
                task,
                description=progress.experiment,
                completed=progress.finished,
                total=progress.named,
                left=left,
            )

        yield tell
