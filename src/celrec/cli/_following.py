"""Following a stream: read, learn, keep, tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from celrec.data.streams.event_source import EventSource
from celrec.errors import CelrecError
from celrec.evaluation.prequential import Prequential, Window
from celrec.training.online_run import OnlineRun


@dataclass(frozen=True, slots=True)
class Pace:
    """How much at once, how often to keep it, and when to stop."""

    batch: int
    checkpoint_every: int
    """After so many events, or after"""
    checkpoint_seconds: float
    events: int | None
    """Stop with the batch that reaches so many events, counted from the start of the run."""

    def __post_init__(self) -> None:
        for name in ("batch", "checkpoint_every"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise CelrecError(f"--{option} must be at least 1, not {getattr(self, name)}")
        if not self.checkpoint_seconds >= 0:
            raise CelrecError(
                f"--checkpoint-seconds must not be negative, not {self.checkpoint_seconds}"
            )

    def reached(self, run: OnlineRun) -> bool:
        """Whether it is time to stop."""
        return self.events is not None and run.events >= self.events


def follow(
    run: OnlineRun,
    source: EventSource,
    metrics: Prequential,
    pace: Pace,
    stop: Callable[[], bool],
    tell: Callable[[list[Window]], None],
) -> None:
    """Learn until the source ends, enough was learned, or `stop` says so; then keep it.

    A source hears that events need not come again when the checkpoint that holds them is on
    the disk. One that fails is told of only when what came before is safe.
    """
    saved, since = run.events, time.monotonic()

    def keep() -> None:
        if run.offset is not None and run.checkpoint(metrics.state_dict()):
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
        tell(metrics.add(run.learn(events)))
        late = time.monotonic() - since >= pace.checkpoint_seconds
        if late or run.events - saved >= pace.checkpoint_every:
            keep()
            saved, since = run.events, time.monotonic()
    keep()
