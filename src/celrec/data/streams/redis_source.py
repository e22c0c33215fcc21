"""Events from a Redis stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from celrec.data.columns import Columns
from celrec.data.streams._away import Away
from celrec.data.streams._object_intake import ObjectIntake
from celrec.data.streams._outage import Outage
from celrec.data.streams._redis_entries import Entry, entry_objects, written
from celrec.data.streams._redis_group import NoGroup, RedisGroup
from celrec.data.streams._redis_reader import RedisReader
from celrec.data.streams.event_source import EventSource
from celrec.data.streams.events import Events, Offset, no_events
from celrec.data.streams.rejected import Rejected
from celrec.errors import CelrecError


class RedisSource(EventSource):
    """The entries of a Redis stream, read as a consumer of a group; never ends.

    An entry is a map of fields (`user`, `item`, `target`, …, as text) or has one field,
    `json` or `event`, with a JSON object. A new group begins with the oldest entry.

    Everything up to the last id in an offset counts as learned, and all after it is
    read, whatever the group has been told: `acknowledge` follows a checkpoint, and if that
    is damaged, entries are due that the group takes for done. How many of those the stream
    no longer holds is told as a rejected event, by Redis 7. Without an offset, what the group
    has delivered and nobody acknowledged comes first, then what is new.

    So no two runs read with one group. Entries that a dead consumer of another name holds
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
        self._reader: RedisReader | None = None

    def __str__(self) -> str:
        return str(self._group)

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """See `EventSource`."""
        offset = self._begin(size, after, stream=self._stream)
        intake = ObjectIntake(self._roles, offset)
        reader = RedisReader(self._group, offset.get("last"), offset.get("entries"))
        self._reader = reader
        if missing := self._start(reader):
            place = f"stream {self._stream}, after entry {reader.last}"
            reason = f"{missing:,} entries are no longer in the stream"
            lost = Rejected(place, "", reason)
            yield Events(no_events(), self._place(reader, intake), (lost,))
        while True:
            entries = self._gather(reader, size)
            events, problems = entry_objects(entries)
            taken = intake.take(events, problems, partial(self._locate, entries))
            self._lateness.add(taken.frame)
            yield Events(taken.frame, self._place(reader, intake), taken.rejected)

    def acknowledge(self, offset: Offset) -> None:
        """See `EventSource`."""
        done = self._reader.safe(offset["last"] or "0") if self._reader else []
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

    def _start(self, reader: RedisReader) -> int:
        try:
            return reader.start()
        except Away as away:
            raise CelrecError(
                f"{self}: cannot connect ({away}); start it, or correct the address"
            ) from None

    def _place(self, reader: RedisReader, intake: ObjectIntake) -> Offset:
        place = {"stream": self._stream, "last": reader.last, "entries": reader.entries}
        return self._offset({**place, **intake.state()})

    def _gather(self, reader: RedisReader, size: int) -> list[Entry]:
        """What comes within the time to linger; less if the connection breaks."""
        deadline = time.monotonic() + self._linger
        entries: list[Entry] = []
        try:
            while len(entries) < size and (left := deadline - time.monotonic()) > 0:
                entries += reader.read(size - len(entries), left)
                self._outage.over()
        except Away as away:
            reader.disconnected()
            wait = self._outage.failed(str(away))
            if not entries:
                time.sleep(min(wait, self._linger))
        return entries

    def _locate(self, entries: list[Entry], row: int) -> tuple[str, str]:
        entry = entries[row]
        return f"stream {self._stream}, entry {entry[0].decode()}", written(entry)
