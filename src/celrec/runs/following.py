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
    """The batch size, the intervals of checkpoints, and when to stop."""

    batch: int
    """Events per batch; fewer if a live source has no more after a short time."""
    checkpoint_every: int = 100_000
    """Events between checkpoints."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""
    events: int | None = None
    """Stop after the batch that reaches this number of events since the start of the run."""

    def __post_init__(self) -> None:
        for name in ("batch", "checkpoint_every", "checkpoint_seconds"):
            option = find_option(name)
            option.check(getattr(self, name), f"{name} ({option.switch})")

    def reached(self, run: OnlineRun) -> bool:
        """Whether the run has reached its number of events."""
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
    r"""Learn until the source ends, the pace is reached, or `stop` is true; then checkpoint.

    `heard` is called with the predictions of each batch before learning. `notes` gives what each
    checkpoint records besides; if None, the notes of the last one.

    Events are acknowledged to the source when their checkpoint is on disk. An error of the source
    is raised after a checkpoint of all events before it.

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


def requested_plan(settings: Mapping[str, Any]) -> Plan:
    """The plan of some settings of `celrec online`."""
    return Plan(**{name: settings[name] for name in PLAN_OPTIONS if name in settings})


def stream_source(settings: Mapping[str, Any], plan: Plan, name: str) -> dict[str, Any]:
    """The settings that a run of that `name` records, and how its events are read."""
    noted = {**online_defaults(), **settings, "rank": plan.dim}
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
