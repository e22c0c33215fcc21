"""Following a stream: read, learn, keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celrec.data.streams.event_source import EventSource
from celrec.errors import CelrecError
from celrec.training.learned import Learned
from celrec.training.online_run import OnlineRun


@dataclass(frozen=True, slots=True)
class Pace:
    """How much at once, how often to keep it, and when to stop."""

    batch: int
    """So many events are learned at once, or as many as a live source has after a short time."""
    checkpoint_every: int = 100_000
    """After so many events, or after"""
    checkpoint_seconds: float = 60.0
    events: int | None = None
    """Stop with the batch that reaches so many events, counted from the start of the run."""

    def __post_init__(self) -> None:
        for name in ("batch", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise CelrecError(f"{_both(name)} must be at least 1, not {getattr(self, name)}")
        if not self.checkpoint_seconds >= 0:
            name = _both("checkpoint_seconds")
            raise CelrecError(f"{name} must not be negative, not {self.checkpoint_seconds}")

    def reached(self, run: OnlineRun) -> bool:
        """Whether it is time to stop."""
        return self.events is not None and run.events >= self.events


def follow(
    run: OnlineRun,
    source: EventSource,
    pace: Pace,
    *,
    heard: Callable[[Learned], None] | None = None,
    notes: Callable[[], Mapping[str, Any]] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    r"""Learn until the source ends, enough was learned, or `stop` says so; then keep it.

    `heard` hears of each batch what was predicted before it was learned. `notes` tells what is
    to be kept with each checkpoint; if it is None, what was kept with the last one.

    A source hears that events need not come again when the checkpoint that holds them is on
    the disk. An error of the source is raised only when what came before is safe.

    >>> from pathlib import Path; from tempfile import mkdtemp
    >>> from celrec.data.streams.file_source import FileSource
    >>> from celrec.training.plan import Plan
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "log.csv").write_text("user,item,rating\n1,a,5\n2,b,3\n1,b,4\n")
    >>> seen = []
    >>> with OnlineRun.start(folder / "run", Plan(embedding="cel-lite", compression="4")) as run:
    ...     follow(run, FileSource(folder / "log.csv"), Pace(batch=2), heard=seen.append)
    >>> [learned.targets.tolist() for learned in seen]
    [[5.0, 3.0], [4.0]]
    >>> with OnlineRun.resume(folder / "run") as run:
    ...     run.events
    3
    """
    saved, since = run.events, time.monotonic()

    def keep() -> None:
        kept = run.notes if notes is None else notes()
        if run.offset is not None and run.checkpoint(kept):
            source.acknowledge(run.offset)

    batches = source.batches(pace.batch, run.offset)
    while not stop() and not pace.reached(run):
        try:
            events = next(batches, None)
        except CelrecError:
            keep()
            raise
        if events is None:
            break
        learned = run.learn(events)
        if heard is not None:
            heard(learned)
        late = time.monotonic() - since >= pace.checkpoint_seconds
        if late or run.events - saved >= pace.checkpoint_every:
            keep()
            saved, since = run.events, time.monotonic()
    keep()


def _both(name: str) -> str:
    """What an argument is called here and by the command."""
    return f"{name} (--{name.replace('_', '-')})"
