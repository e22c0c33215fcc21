"""Progress bars for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from celrec.data.datasets.library import LabelledProgress


@contextmanager
def progress_bars() -> Iterator[LabelledProgress]:
    """A function that shows how far each of several tasks is, on a terminal only.

    Bars go to standard error and vanish when the work is done.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        tasks: dict[str, int] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total or None)
            bars.update(tasks[label], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report
