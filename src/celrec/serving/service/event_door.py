"""Events of requests to lines of the journal."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from celrec.errors import CelrecError
from celrec.serving.service.messages import Event
from celrec.training.plan import Plan


class EventDoor:
    r"""Lets in what the run can learn, so that nothing in the journal has to be set aside later.

    >>> door = EventDoor(Plan(embedding="cel-lite", model="mf", loss="cross-entropy"))
    >>> door.lines([Event(user="ann", item=7, timestamp=5)])
    b'{"user": "ann", "item": 7, "target": 1.0, "timestamp": 5}\n'
    """

    def __init__(self, plan: Plan, columns: Sequence[str] = ()) -> None:
        self.columns = tuple(columns)
        self._plan = plan
        conversions = plan.loss == "cross-entropy"
        self._happened = None if not conversions else (plan.positive or 1.0)
        self._binary = conversions and plan.positive is None

    @property
    def needs_target(self) -> bool:
        """Whether an event without a target says nothing to this run."""
        return self._happened is None

    def lines(self, events: Sequence[Event], *, first: bool = False) -> bytes:
        """A line for each event; complains about one that cannot be learned.

        `first` if nothing was learned yet.
        """
        now = time.time_ns() // 1000
        return b"".join(self._line(row, event, now, first) for row, event in enumerate(events))

    def _line(self, row: int, event: Event, now: int, first: bool) -> bytes:
        target = self._happened if event.target is None else event.target
        if target is None:
            raise CelrecError(
                f"events.{row}.target: none is given, and the run learns ratings; give one"
            )
        if self._binary and target not in (0, 1):
            raise CelrecError(
                f"events.{row}.target: must be 0 or 1 for this run, not {target:g}; it was started "
                "without a `positive` target"
            )
        if first and self._plan.model == "nmf" and target <= 0:
            raise CelrecError(
                f"events.{row}.target: must be positive at first, not {target:g}, for model 'nmf'"
            )
        line = {
            "user": event.user,
            "item": event.item,
            "target": target,
            "timestamp": now if event.timestamp is None else event.timestamp,
        }
        for name, value in event.columns.items():
            if name not in self.columns:
                known = ", ".join(self.columns) or "none"
                raise CelrecError(
                    f"events.{row}.columns: {name!r} is no column of this run; it has {known}"
                )
            line[f"ids:{name}"] = value
        return json.dumps(line).encode() + b"\n"
