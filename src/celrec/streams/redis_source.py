"""Events from a Redis stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from celrec.data.columns import Columns
from celrec.streams.events import (
    BrokerUnavailable,
    Events,
    EventSource,
    Offset,
    Outage,
    Rejected,
    connected,
    no_events,
)
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

    The position is `last`, not that of the group: after a damaged checkpoint a run may have to
    read acknowledged entries again, so the group is rewound to `last`. Without `last`, the
    entries that were delivered and not acknowledged come first, then new ones.
    """

    def __init__(self, group: RedisGroup, last: str | None, entries: int | None) -> None:
        self._group = group
        self.last = last
        """The highest id that was read or is part of the checkpoint."""
        self.entries = entries
        """The number of entries added to the stream up to that id; None if unknown."""
        self._delivered: list[Number] = []  # waiting for a checkpoint
        self._reported: list[Number] = []  # removed entries, waiting for a checkpoint
        self._removed_entries: list[Entry] = []  # removed entries that are not reported yet
        self._backlog_after: str | bytes | None = "0"
        self._lost = False

    def start(self) -> int:
        """Find the position; return the number of unread entries that the stream has lost."""
        self._group.open(self.last or "0", self.entries)
        if self.last is None:
            self._note_removed(self._group.take_over())
        else:
            self._group.acknowledge_all(self.last)
        self._find()
        info = self._group.info()
        trimmed = info.first is None or number_of(info.first) > number_of(self.last or "0")
        if self.entries is None or info.added is None or not trimmed:
            return 0
        missing = max(info.added - info.length - self.entries - len(self._removed_entries), 0)
        self.entries += missing
        return missing

    def disconnected(self) -> None:
        """Note that an answer may have been lost, which Redis counts as delivered."""
        self._lost = True

    def read(self, count: int, seconds: float) -> list[Entry]:
        """Up to `count` of the next entries; waits up to `seconds` for the first."""
        try:
            if self._lost:
                self._find()
            if self._removed_entries:
                return self._removed(count)
            if self._backlog_after is None:
                return self._new(self._group.fresh(count, seconds))
            return self._backlog(self._backlog_after, count)
        except NoGroup:
            self._lost = True
            return []

    def safe(self, last: str) -> list[Number]:
        """The entries to acknowledge, once, after a checkpoint with all entries up to `last`."""
        upto = number_of(last)
        done = self._reported + [number for number in self._delivered if number <= upto]
        self._reported = []
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
        known = {*self._reported, *(number_of(entry[0]) for entry in self._removed_entries)}
        highest = number_of(self.last or "0")
        for entry in entries:
            if (number := number_of(entry[0])) > highest and number not in known:
                self._removed_entries.append(entry)

    def _removed(self, count: int) -> list[Entry]:
        removed, self._removed_entries = (
            self._removed_entries[:count],
            self._removed_entries[count:],
        )
        self._reported += [number_of(entry[0]) for entry in removed]
        if self.entries is not None:
            self.entries += len(removed)
        return removed

    def _backlog(self, after: str | bytes, count: int) -> list[Entry]:
        """Entries that were delivered and not acknowledged; after them the position is known."""
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
        """The entries that were not read before; after a failover a replica may repeat some."""
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

    An entry is a map of fields (`user`, `item`, `target`, …, as text) or has one field, `json` or
    `event`, with a JSON object. A new group begins with the oldest entry.

    All entries after the last id of an offset are read, even acknowledged ones: `acknowledge`
    follows a checkpoint, and if that is damaged, its entries must be read again. With Redis 7,
    the number of those that the stream has removed is reported as a rejected event. Without an
    offset, entries that were delivered and not acknowledged come first, then new ones.

    So each run needs its own group. Pending entries of another consumer are claimed at the start
    if they have been idle for a minute.

    A failure of the first connection is an error; a lost connection is retried for `patience`
    seconds. Needs Redis 6.2 and `pip install 'celrec[stream]'`.
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
        self.reader: RedisReader | None = None

    def __str__(self) -> str:
        return str(self._group)

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """The events after an offset; never ends."""
        offset = self._begin(size, after, stream=self._stream)
        intake = ObjectIntake(self._roles, offset)
        reader = RedisReader(self._group, offset.get("last"), offset.get("entries"))
        self.reader = reader
        if missing := connected(self, reader.start):
            place = f"stream {self._stream}, after entry {reader.last}"
            reason = f"{missing:,} entries are no longer in the stream"
            lost = Rejected(place, "", reason)
            yield Events(no_events(), self._place(reader, intake), (lost,))
        while True:
            entries = self._gather(reader, size)
            events, problems = entry_objects(entries)
            parsed = intake.take(events, problems, partial(self._locate, entries))
            self._lateness.add(parsed.frame)
            yield Events(parsed.frame, self._place(reader, intake), parsed.rejected)

    def acknowledge(self, offset: Offset) -> None:
        """Acknowledge saved entries to the group."""
        done = self.reader.safe(offset["last"] or "0") if self.reader else []
        with suppress(NoGroup):  # a group that does not exist has no pending entries
            self._outage.retried(lambda: self._group.acknowledge(done))

    def close(self) -> None:
        self._group.close()

    def _place(self, reader: RedisReader, intake: ObjectIntake) -> Offset:
        place = {"stream": self._stream, "last": reader.last, "entries": reader.entries}
        return self._offset({**place, **intake.state()})

    def _gather(self, reader: RedisReader, size: int) -> list[Entry]:
        deadline = time.monotonic() + self._linger
        entries: list[Entry] = []
        try:
            while len(entries) < size and (remaining := deadline - time.monotonic()) > 0:
                entries += reader.read(size - len(entries), remaining)
                self._outage.over()
        except BrokerUnavailable as error:
            reader.disconnected()
            wait = self._outage.failed(str(error))
            if not entries:
                time.sleep(min(wait, self._linger))
        return entries

    def _locate(self, entries: list[Entry], row: int) -> tuple[str, str]:
        entry = entries[row]
        return f"stream {self._stream}, entry {entry[0].decode()}", written(entry)
