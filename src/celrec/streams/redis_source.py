"""Events from a Redis stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams.broker import BrokerUnavailable, Outage
from celrec.streams.events import Events, EventSource, Offset, Rejected, no_events
from celrec.streams.object_intake import ObjectIntake
from celrec.streams.redis_group import (
    Entry,
    NoGroup,
    Number,
    RedisGroup,
    entry_objects,
    number_of,
    written,
)

_AT_ONCE = 1000


class RedisReader:
    """Reads entries in the order of their ids, each once.

    What is read is told by `last`, and not by the group: that may have been told that entries
    are safe which a run has to read again, since its latest checkpoint was damaged. So the group
    is wound back to `last`. Only where no `last` is given yet, what the group has delivered and
    nobody has acknowledged comes first, and then what is new.
    """

    def __init__(self, group: RedisGroup, last: str | None, entries: int | None) -> None:
        self._group = group
        self.last = last
        """The highest id that was read or counts as learned."""
        self.entries = entries
        """How many were ever added to the stream up to that one; None if nobody knows."""
        self._delivered: list[Number] = []  # that wait for a checkpoint
        self._told: list[Number] = []  # the same for what was removed from the stream
        self._gone: list[Entry] = []  # removed, and not told yet
        self._backlog_after: str | bytes | None = "0"
        self._lost = False

    def start(self) -> int:
        """Find the place where reading goes on; how many entries should be there and are not."""
        self._group.open(self.last or "0", self.entries)
        if self.last is None:
            self._note_removed(self._group.take_over())
        else:
            self._group.acknowledge_all(self.last)
        self._find()
        held = self._group.held()
        trimmed = held.first is None or number_of(held.first) > number_of(self.last or "0")
        if self.entries is None or held.added is None or not trimmed:
            return 0
        missing = max(held.added - held.length - self.entries - len(self._gone), 0)
        self.entries += missing
        return missing

    def disconnected(self) -> None:
        """An answer may have been lost on its way, which Redis counts as delivered."""
        self._lost = True

    def read(self, count: int, seconds: float) -> list[Entry]:
        """The next entries, up to `count`; waits up to some seconds for the first."""
        try:
            if self._lost:
                self._find()
            if self._gone:
                return self._removed(count)
            if self._backlog_after is None:
                return self._new(self._group.fresh(count, seconds))
            return self._backlog(self._backlog_after, count)
        except NoGroup:
            self._lost = True
            return []

    def safe(self, last: str) -> list[Number]:
        """What can be acknowledged, once, since a checkpoint holds all up to `last`."""
        upto = number_of(last)
        done = self._told + [number for number in self._delivered if number <= upto]
        self._told = []
        self._delivered = [number for number in self._delivered if number > upto]
        return done

    def _find(self) -> None:
        self._group.open(self.last or "0", self.entries)
        if self.last is not None:
            after: str | bytes = self.last
            while found := self._group.pending(after, _AT_ONCE):
                after = found[-1][0]
                self._note_removed([entry for entry in found if not entry[1]])
            self._group.wind_to(self.last, self.entries)
            self._backlog_after = None
        self._lost = False

    def _note_removed(self, entries: Sequence[Entry]) -> None:
        known = {*self._told, *(number_of(entry[0]) for entry in self._gone)}
        highest = number_of(self.last or "0")
        for entry in entries:
            if (number := number_of(entry[0])) > highest and number not in known:
                self._gone.append(entry)

    def _removed(self, count: int) -> list[Entry]:
        gone, self._gone = self._gone[:count], self._gone[count:]
        self._told += [number_of(entry[0]) for entry in gone]
        if self.entries is not None:
            self.entries += len(gone)
        return gone

    def _backlog(self, after: str | bytes, count: int) -> list[Entry]:
        """What was delivered and not acknowledged; after it, the place is known."""
        found = self._group.pending(after, count)
        if found:
            self._backlog_after = found[-1][0]
            return self._new(found)
        self._backlog_after = None
        delivered, entries = self._group.delivered()
        self.last = self.last or delivered
        self.entries = entries if self.last == delivered else None
        return []

    def _new(self, found: list[Entry]) -> list[Entry]:
        """What was not read before; a replica that has taken over may not know of the rest."""
        highest = number_of(self.last or "0")
        self._delivered += [number_of(entry[0]) for entry in found]
        new = [entry for entry in found if number_of(entry[0]) > highest]
        if new:
            self.last = new[-1][0].decode()
        if self.entries is not None:
            self.entries += len(new)
        return new


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
            except BrokerUnavailable as away:
                time.sleep(self._outage.failed(str(away)))

    def close(self) -> None:
        """See `EventSource`."""
        self._group.close()

    def _start(self, reader: RedisReader) -> int:
        try:
            return reader.start()
        except BrokerUnavailable as away:
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
        except BrokerUnavailable as away:
            reader.disconnected()
            wait = self._outage.failed(str(away))
            if not entries:
                time.sleep(min(wait, self._linger))
        return entries

    def _locate(self, entries: list[Entry], row: int) -> tuple[str, str]:
        entry = entries[row]
        return f"stream {self._stream}, entry {entry[0].decode()}", written(entry)
