"""Events of requests: validation, lines for the journal, and group commit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celrec.config.plan import Plan
from celrec.errors import CelrecError
from celrec.service.guard import LONGEST_ID
from celrec.service.messages import Event
from celrec.streams.journal import Journal


class EventWriter:
    r"""Validates events and writes them as lines of the journal.

    An event that the run cannot learn is refused here, so that the journal has no bad lines.

    >>> writer = EventWriter(Plan(embedding="cel-lite", model="mf", loss="cross-entropy"))
    >>> writer.lines([Event(user="ann", item=7, timestamp=5)])
    b'{"user": "ann", "item": 7, "target": 1.0, "timestamp": 5}\n'
    """

    def __init__(self, plan: Plan, columns: Sequence[str] = ()) -> None:
        self.columns = tuple(columns)
        self._plan = plan
        conversions = plan.loss == "cross-entropy"
        self._default_target = (plan.positive or 1.0) if conversions else None
        self._binary = conversions and plan.positive is None

    @property
    def needs_target(self) -> bool:
        """Whether events must have a target."""
        return self._default_target is None

    def lines(self, events: Sequence[Event], *, first: bool = False) -> bytes:
        """One line per event; raises for an event that cannot be learned.

        `first` is for a run that has learned nothing yet.
        """
        now = time.time_ns() // 1000
        return b"".join(self._line(row, event, now, first) for row, event in enumerate(events))

    def _line(self, row: int, event: Event, now: int, first: bool) -> bytes:
        target = self._default_target if event.target is None else event.target
        if target is None:
            raise CelrecError(
                f"events.{row}.target: is missing, and the run learns ratings; give one"
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
                    f"events.{row}.columns: {name!r} is not a column of this run; it has {known}"
                )
            line[f"ids:{name}"] = value
        return json.dumps(line).encode() + b"\n"


MOST_WAITING = 64 << 20  # bytes


class BusyError(Exception):
    """Too many events wait for the disk to keep them in memory."""


class GroupCommit:
    """Group commit: all requests that arrive during a write are appended in the next one.

    The cost of a flush is shared, so throughput rises with load.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._waiting: list[tuple[bytes, int, asyncio.Future[int]]] = []
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    async def commit(self, lines: bytes, events: int) -> int:
        """Wait until the lines are on disk; return the number of events in the journal up to them.

        Raises OSError if writing fails.
        """
        if self._bytes + len(lines) > MOST_WAITING:
            raise BusyError
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._waiting.append((lines, events, done))
        self._bytes += len(lines)
        if self._task is None:
            self._task = loop.create_task(self._work())
        return await done

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting, self._bytes = self._waiting, [], 0
            lines = b"".join(lines for lines, _, _ in group)
            events = sum(count for _, count, _ in group)
            try:
                last = await loop.run_in_executor(self._thread, self._journal.append, lines, events)
            except OSError as error:
                for _, _, done in group:
                    if not done.done():  # the client may have disconnected
                        done.set_exception(OSError(error.errno, error.strerror))
                continue
            last -= events
            for _, count, done in group:
                last += count
                if not done.done():
                    done.set_result(last)
        self._task = None

    async def close(self) -> None:
        """Wait until all lines are written, and end the thread."""
        while self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown()


_ID = f"must be a 64-bit integer, or a string of 1 to {LONGEST_ID} characters without NUL"
_LONGEST = 300  # characters: field names may come from the client


def validation_message(errors: Sequence[Any]) -> str:
    """The first validation error of pydantic in one line, with the number of further ones.

    The input is not repeated: it may be long, secret or not printable.

    >>> validation_message([{"loc": ("body", "k"), "msg": "Input should be a number", "type": "x"}])
    'k: Input should be a number'
    """
    by_place: dict[str, list[Any]] = {}
    for error in errors:
        by_place.setdefault(_place(error["loc"]), []).append(error)
    place, first = next(iter(by_place.items()))
    if first[0]["type"] == "json_invalid":
        return f"the body is not JSON: {first[0].get('ctx', {}).get('error', 'it ends early')}"
    of_id = any(_is_branch(part) for part in first[0]["loc"])
    line = f"{place}: {_ID if of_id else first[0]['msg']}"
    more = len(by_place) - 1
    return line[:_LONGEST] + (f" (and {more} more)" if more else "")


def _place(where: Sequence[str | int]) -> str:
    parts = [str(part) for part in where[1:] if not _is_branch(part)]
    return ".".join(parts) or str(where[0])


def _is_branch(part: str | int) -> bool:
    """Whether it names a branch of the union type of ids, not a field."""
    return part in ("constrained-int", "constrained-str", "int", "str")
