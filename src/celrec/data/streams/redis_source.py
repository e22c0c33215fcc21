"""Events from a Redis stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from functools import partial

from celrec.data.columns import Columns
from celrec.data.streams._away import Away
from celrec.data.streams._object_intake import ObjectIntake
from celrec.data.streams._outage import Outage
from celrec.data.streams._redis_entries import Entry, entry_objects, number_of, written
from celrec.data.streams._redis_group import NoGroup, RedisGroup
from celrec.data.streams.event_source import EventSource
from celrec.data.streams.events import Events, Offset
from celrec.errors import CelrecError


class RedisSource(EventSource):
    """The entries of a Redis stream, read as a consumer of a group; never ends.

    An entry is a map of fields (`user`, `item`, `target`, …, as text) or has one field,
    `json` or `event`, with a JSON object. A new group begins with the oldest entry.

    Redis keeps what was delivered until it is acknowledged, and `acknowledge`
    follows a checkpoint: entries delivered after the last checkpoint are
    delivered again after a crash. Everything up to the last id in an offset counts
    as learned. So a run is one consumer with a name that stays the same, and no two
    runs read with one group; entries that a dead consumer of another name holds
    are taken over at the start if they have been idle for a minute.

    A first connection that fails is an error; one that is lost later is tried
    again for `patience` seconds. Needs Redis 6.2 and `pip install 'celrec[stream]'`.
    """

    kind = "redis"

    def __init__(
        self,
        url: str,
        stream: str,
        roles: Columns | None = None,
        *,
        group: str = "celrec",
        consumer: str = "celrec",
        linger: float = 1.0,
        patience: float = 60.0,
    ) -> None:
        super().__init__()
        self._roles, self._stream, self._linger = roles or Columns(), stream, linger
        self._group = RedisGroup(url, stream, group, consumer, longest_wait=linger)
        self._outage = Outage(str(self), patience)
        self._delivered: deque[tuple[int, int]] = deque()

    def __str__(self) -> str:
        return str(self._group)

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """See `EventSource`."""
        offset = self._begin(size, after, stream=self._stream)
        intake = ObjectIntake(self._roles, offset)
        self._delivered.clear()
        reader = _Reader(self._group, offset.get("last"), self._delivered)
        reader.start()
        while True:
            entries = self._gather(reader, size)
            events, problems = entry_objects(entries)
            frame, rejected = intake.take(events, problems, partial(self._locate, entries))
            self._lateness.add(frame)
            where = {"stream": self._stream, "last": reader.last, **intake.state()}
            yield Events(frame, self._offset(where), rejected)

    def acknowledge(self, offset: Offset) -> None:
        """See `EventSource`."""
        done = []
        while self._delivered and self._delivered[0] <= number_of(offset["last"] or "0"):
            done.append(self._delivered.popleft())
        while True:
            try:
                return self._group.acknowledge(done)
            except NoGroup:
                return None  # nothing is kept for a group that is gone
            except Away as away:
                time.sleep(self._outage.failed(str(away)))

    def close(self) -> None:
        """See `EventSource`."""
        self._group.close()

    def _gather(self, reader: _Reader, size: int) -> list[Entry]:
        """What comes within the time to linger; less if the connection breaks."""
        deadline = time.monotonic() + self._linger
        entries: list[Entry] = []
        try:
            while len(entries) < size and (left := deadline - time.monotonic()) > 0:
                entries += reader.read(size - len(entries), left)
                self._outage.over()
        except Away as away:
            reader.reconnect()
            wait = self._outage.failed(str(away))
            if not entries:
                time.sleep(min(wait, self._linger))
        return entries

    def _locate(self, entries: list[Entry], row: int) -> tuple[str, str]:
        entry = entries[row]
        return f"stream {self._stream}, entry {entry[0].decode()}", written(entry)


class _Reader:
    """Reads first what was delivered before and is not acknowledged, then what is new."""

    def __init__(
        self, group: RedisGroup, last: str | None, delivered: deque[tuple[int, int]]
    ) -> None:
        self._group, self._delivered = group, delivered
        self.last = last
        """The highest id that was delivered or counts as learned."""
        self._learned = number_of(last or "0")
        self._gone: list[Entry] = []
        self._backlog_after: str | bytes | None = "0"

    def start(self) -> None:
        try:
            self._open()
        except Away as away:
            raise CelrecError(
                f"{self._group}: cannot connect ({away}); start it, or correct the address"
            ) from None

    def reconnect(self) -> None:
        # An answer may have been lost on its way: Redis counts it as delivered.
        self._backlog_after = self.last or "0"

    def read(self, count: int, seconds: float) -> list[Entry]:
        try:
            if self._gone:
                gone, self._gone = self._gone[:count], self._gone[count:]
                return gone
            if self._backlog_after is None:
                return self._new(self._group.fresh(count, seconds))
            found = self._group.pending(self._backlog_after, count)
            self._backlog_after = found[-1][0] if found else None
            return self._new(found)
        except NoGroup:
            self._open()
            return []

    def _open(self) -> None:
        gone = self._group.open(self.last or "0")
        self._gone += [entry for entry in gone if number_of(entry[0]) > number_of(self.last or "0")]

    def _new(self, found: list[Entry]) -> list[Entry]:
        """What was not delivered before; the rest is to be acknowledged again."""
        highest = number_of(self.last or "0")
        new = [entry for entry in found if number_of(entry[0]) > highest]
        again = [n for entry in found if (n := number_of(entry[0])) <= highest]
        self._delivered.extend(n for n in again if n > self._learned)
        if learned := [n for n in again if n <= self._learned]:
            self._group.acknowledge(learned)
        self._delivered.extend(number_of(entry[0]) for entry in new)
        if new:
            self.last = new[-1][0].decode()
        return new
