"""Progress bars, tables, and signals that stop a long command."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from celrec.data.datasets.library import LabelledProgress


@contextmanager
def progress_bar(*columns: ProgressColumn, shown: bool = True) -> Iterator[Progress]:
    """A bar on standard error, on a terminal only; it vanishes at the end."""
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        yield bar


@contextmanager
def progress_bars() -> Iterator[LabelledProgress]:
    """A function that reports the progress of each of several tasks."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with progress_bar(*columns) as bars:
        tasks: dict[str, int] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total or None)
            bars.update(tasks[label], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report


def facts_table() -> Table:
    """A table of names and values, without a header."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table


def ruled_table(*headers: str, numbers: Sequence[str] = ()) -> Table:
    """A table with a rule below its header; the columns `numbers` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right" if header in numbers else "left")
    return table


class Interruption(Exception):  # noqa: N818  (nothing has gone wrong)
    """The user has interrupted a command; the message says how to go on."""


class StopSignal:
    """Records Ctrl-C and SIGTERM in `requested`, which the command checks between batches.

    A second signal has its usual effect.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self._before = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
