"""The items that each user has interacted with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.data.id_map import whole_numbers
from celrec.errors import CelrecError
from celrec.runtime.jit import Flags, Ints, ShortInts, compiled
from celrec.runtime.memory_budget import GrowingRows, MemoryBudget

_INT32 = np.dtype(np.int32)
COMPACT_FROM = 1 << 16  # minimal number of events between compactions
_BLOCK = 1 << 20  # events copied at once in a compaction


class SeenItems:
    """The items that each user has interacted with, as a linked list of events per user.

    Events can be added at any time; an event takes 12 bytes and a user 8. With `latest`, only the
    latest so many events of each user count, and older ones are removed from time to time. With a
    `budget`, memory beyond it is in files. Events with an unseen user or item (below 0) are
    ignored.

    >>> seen = SeenItems()
    >>> seen.add([0, 1, 0], [7, 7, 9])
    >>> seen.add([0], [8])
    >>> starts, items = seen.of([1, 0, 5])
    >>> starts, items
    (array([0, 1, 4, 4]), array([7, 8, 9, 7], dtype=int32))
    """

    def __init__(self, latest: int | None = None, budget: MemoryBudget | None = None) -> None:
        if latest is not None and latest < 1:
            raise CelrecError(f"latest must be positive, not {latest}; or None for all")
        self.latest, self._budget = latest, budget
        self._most = np.iinfo(np.int32).max if latest is None else latest
        self.generation = 0
        """The number of compactions and renumberings so far; each changes places of events."""
        self._size, self._compact_at = 0, COMPACT_FROM
        self._clear()

    def __len__(self) -> int:
        """The number of stored events."""
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes allocated, including spare capacity."""
        arrays = (self._user, self._item, self._before, self._last, self._count)
        return sum(rows.nbytes for rows in arrays)

    def add(self, users: ArrayLike, items: ArrayLike) -> None:
        """Append events in the order of time."""
        who, what = whole_numbers("users", users), whole_numbers("items", items)
        if len(who) != len(what):
            raise CelrecError(f"items: {len(what):,} for {len(who):,} users; pass pairs")
        needed = self._size + len(who)
        if needed > np.iinfo(np.int32).max:
            raise CelrecError(f"users: {needed:,} events are too many; give `latest`")
        for rows in (self._user, self._item, self._before):
            _reserve(rows, needed)
        for rows in (self._last, self._count):
            _reserve(rows, int(who.max(initial=-1)) + 1)
        of_events = (self._user.flat, self._item.flat, self._before.flat)
        self._size = _append(who, what, self._size, *of_events, self._last.flat, self._count.flat)
        if self.latest is not None and self._size >= self._compact_at:
            self._compact()

    def of(self, users: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The items of users as (offsets, items), where user k has items[offsets[k]:offsets[k+1]].

        The latest items come first, repeated ones as often as they were seen.
        """
        who = whole_numbers("users", users)
        known = (who >= 0) & (who < len(self._count.flat))
        starts = np.zeros(len(who) + 1, np.int64)
        starts[1:][known] = np.minimum(self._count.flat[who[known]], self._most)
        np.cumsum(starts, out=starts)
        items = np.empty(starts[-1], np.int32)
        _collect(who, self._item.flat, self._before.flat, self._last.flat, starts, items)
        return starts, items

    def events(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The users and items of all events that count, in the order of time."""
        user, item = (rows.flat[: self._size] for rows in (self._user, self._item))
        if self.latest is not None:
            counted = self._counted()
            user, item = user[counted], item[counted]
        return user.copy(), item.copy()

    def stored(
        self, start: int = 0, end: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The users and items of stored events start … end − 1, also of those that do not count."""
        some = slice(start, self._size if end is None else min(end, self._size))
        return self._user.flat[some].copy(), self._item.flat[some].copy()

    def frozen(self) -> SeenItems:
        """A snapshot, which other threads can read while events are added here.

        It takes 8 bytes per user: stored events never change, so they are shared.
        """
        other = SeenItems(self.latest)
        other.generation, other._size = self.generation, self._size
        for name in ("_user", "_item", "_before"):
            getattr(other, name).flat = getattr(self, name).flat[: self._size]
        for name in ("_last", "_count"):
            getattr(other, name).flat = getattr(self, name).flat.copy()
        return other

    def recency(self, num_items: int) -> NDArray[np.int64]:
        """The number of the last event of each item, −1 if it has none."""
        latest = np.full(num_items, -1)
        _, items = self.events()
        latest[items] = np.arange(len(items))  # the last assignment wins
        return latest

    def keep(
        self, users: NDArray[np.int64] | None = None, items: NDArray[np.int64] | None = None
    ) -> None:
        """Keep only these users or these items, renumbered in this order."""
        self._compact(users, items)

    def _counted(self) -> NDArray[np.bool_]:
        user = self._user.flat[: self._size]
        return _latest(user, self._most, np.zeros_like(self._count.flat))

    def _clear(self) -> None:
        self._user, self._item = self._rows(), self._rows()
        # Places count from 1, since new memory is 0, which stands for none.
        self._before, self._last = self._rows(), self._rows()
        self._count = self._rows()
        self._size = 0

    def _rows(self) -> GrowingRows:
        return GrowingRows(_INT32, budget=self._budget)

    def _compact(
        self, users: NDArray[np.int64] | None = None, items: NDArray[np.int64] | None = None
    ) -> None:
        """Keep only the events that count, copied in blocks to save memory."""
        user, item = (rows.flat[: self._size] for rows in (self._user, self._item))
        counted = self._counted()
        numbers = _numbers(user, users), _numbers(item, items)
        self._clear()
        self.generation += 1
        self._compact_at = max(2 * int(counted.sum()), COMPACT_FROM)
        for start in range(0, len(user), _BLOCK):
            among = counted[start : start + _BLOCK]
            parts = (one[start : start + _BLOCK][among] for one in (user, item))
            self.add(*(n if to is None else to[n] for n, to in zip(parts, numbers, strict=True)))


def _reserve(rows: GrowingRows, needed: int) -> None:
    if needed > len(rows.flat):
        rows.grow(max(needed, len(rows.flat) * 9 // 8))


def _numbers(before: NDArray[np.int32], kept: NDArray[np.int64] | None) -> NDArray[np.int32] | None:
    """The new number of each old one, −1 if it is dropped; None if no numbers change."""
    if kept is None:
        return None
    size = max(int(before.max(initial=-1)), int(kept.max(initial=-1))) + 1
    numbers = np.full(size, -1, np.int32)
    numbers[kept] = np.arange(len(kept))
    return numbers


@compiled
def _append(
    users: Ints,
    items: Ints,
    size: int,
    user: ShortInts,
    item: ShortInts,
    before: ShortInts,
    last: ShortInts,
    count: ShortInts,
) -> int:
    """Append events after the first `size`, each with the place of its user's previous event."""
    for row in range(len(users)):
        who, what = users[row], items[row]
        if who < 0 or what < 0:
            continue
        user[size], item[size], before[size] = who, what, last[who]
        size += 1
        last[who] = size
        count[who] += 1
    return size


@compiled
def _collect(
    users: Ints, item: ShortInts, before: ShortInts, last: ShortInts, starts: Ints, items: ShortInts
) -> None:
    """Follow the events of each user backwards, and write their items."""
    for row in range(len(users)):
        if starts[row] == starts[row + 1]:
            continue
        place = last[users[row]]
        for at in range(starts[row], starts[row + 1]):
            items[at] = item[place - 1]
            place = before[place - 1]


@compiled
def _latest(user: ShortInts, most: int, counts: ShortInts) -> Flags:
    """A mask of the `most` latest events of each user."""
    among = np.zeros(len(user), np.bool_)
    for at in range(len(user) - 1, -1, -1):
        counts[user[at]] += 1
        among[at] = counts[user[at]] <= most
    return among
