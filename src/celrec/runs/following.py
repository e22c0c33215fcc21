"""Following a stream: read, learn, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from celrec.config.options import PLAN_OPTIONS, columns_to_read, find_option, online_defaults
from celrec.config.plan import Plan
from celrec.errors import CelrecError
from celrec.online.make_trainer import online_settings
from celrec.online.trainer import Learned
from celrec.runs.online_run import OnlineRun
from celrec.streams.events import EventSource


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
        for name in ("batch", "checkpoint_every", "checkpoint_seconds"):
            option = find_option(name)
            option.check(getattr(self, name), f"{name} ({option.switch})")

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
    >>> from celrec.streams.file_source import FileSource
    >>> from celrec.config.plan import Plan
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


def requested_plan(asked: Mapping[str, Any]) -> Plan:
    """The plan that is asked for."""
    return Plan(**{name: asked[name] for name in PLAN_OPTIONS if name in asked})


def stream_source(asked: Mapping[str, Any], plan: Plan, name: str) -> dict[str, Any]:
    """What a run of that `name` notes of what it was asked for, and of how events are read."""
    noted = {**online_defaults(), **asked, "rank": plan.dim}
    online = online_settings(plan)
    if noted["batch"] is None:
        noted["batch"] = online.batch
    noted["group"] = noted["group"] or f"celrec-{name}"
    return {"asked": noted, "reading": {**columns_to_read(noted), "drop_invalid": True}}


def requested_settings(plan: Plan, reading: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `celrec online` that give this plan, with columns of these names."""
    planned = {n: value for n, value in asdict(plan).items() if n in online_defaults()}
    columns = {f"{role}_column": reading.get(role) for role in ("user", "item", "target")}
    time, more = reading.get("timestamp"), list(reading.get("columns", ()))
    return {**planned, **columns, "timestamp_column": time, "id_column": more}
