"""Progress bars, and signals that ask a long command to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
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


class Interruption(Exception):  # noqa: N818  (nothing has gone wrong)
    """The user has interrupted a command; the message says how to go on."""


class StopSignal:
    """Turns Ctrl-C and SIGTERM into a wish, to be looked at when it suits.

    The second one has its usual effect, for those who cannot wait.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self._before = {
            number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
