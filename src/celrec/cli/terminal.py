"""Progress bars, and signals that stop a long command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

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
