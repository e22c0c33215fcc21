"""Reading a Redis stream on from where a run has learned it."""

from __future__ import annotations

from collections.abc import Sequence

from celrec.data.streams._redis_entries import Entry, Number, number_of
from celrec.data.streams._redis_group import NoGroup, RedisGroup

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
