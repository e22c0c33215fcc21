"""What each user has seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.data.id_map import whole_numbers
from celrec.errors import CelrecError
from celrec.runtime.growing_arrays import GrowingRows
from celrec.runtime.jit import compiled
from celrec.runtime.memory_budget import MemoryBudget

_INT32 = np.dtype(np.int32)
_LEAST = 1 << 16  # events between two tidyings up, at least
_PART = 1 << 20  # events at once, when they are tidied up


class SeenItems:
    """The items that each user had to do with, as events in the order of time.

    Takes events at any time; 12 bytes each in memory, and 8 for each user. With `latest`, only
    so many of the latest events of a user count, and the memory for others is given back. What is
    beyond the budget of a `budget` lies in files.
    Events of nobody or with nothing (numbers below 0) are left out.

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
        """How often events were dropped or ids numbered anew: then events have other places."""
        self._size, self._tidy_at = 0, _LEAST
        self._forget()

    def __len__(self) -> int:
        """How many events are held."""
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes allocated, with the room for events to come."""
        held = (self._user, self._item, self._before, self._last, self._count)
        return sum(rows.nbytes for rows in held)

    def add(self, users: ArrayLike, items: ArrayLike) -> None:
        """Take notice of events, in their order."""
        who, what = whole_numbers("users", users), whole_numbers("items", items)
        if len(who) != len(what):
            raise CelrecError(f"items: {len(what):,} for {len(who):,} users; pass pairs")
        needed = self._size + len(who)
        if needed > np.iinfo(np.int32).max:
            raise CelrecError(f"users: {needed:,} events are too many; give `latest`")
        for rows in (self._user, self._item, self._before):
            _make_room(rows, needed)
        for rows in (self._last, self._count):
            _make_room(rows, int(who.max(initial=-1)) + 1)
        of_events = (self._user.flat, self._item.flat, self._before.flat)
        self._size = _append(who, what, self._size, *of_events, self._last.flat, self._count.flat)
        if self.latest is not None and self._size >= self._tidy_at:
            self._begin_anew()

    def of(self, users: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Of users, where the items of each begin, and one more place; and all their items.

        The latest first, and as often as they were seen.
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
        user, item = self._held(0, self._size)
        if self.latest is not None:
            counted = self._counted()
            user, item = user[counted], item[counted]
        return user.copy(), item.copy()

    def held(
        self, start: int = 0, end: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The users and items of all events between places, even of those that do not count."""
        user, item = self._held(start, self._size if end is None else min(end, self._size))
        return user.copy(), item.copy()

    def _held(self, start: int, end: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self._user.flat[start:end], self._item.flat[start:end]

    def _counted(self) -> NDArray[np.bool_]:
        """Which events count."""
        user = self._user.flat[: self._size]
        return _latest(user, self._most, np.zeros_like(self._count.flat))

    def frozen(self) -> SeenItems:
        """As it is now, for other threads to read while more is added here.

        Takes 8 bytes for each user: events are put behind others and never change, so both have
        them in common.
        """
        other = SeenItems(self.latest)
        other.generation, other._size = self.generation, self._size
        for name in ("_user", "_item", "_before"):
            getattr(other, name).flat = getattr(self, name).flat[: self._size]
        for name in ("_last", "_count"):
            getattr(other, name).flat = getattr(self, name).flat.copy()
        return other

    def recency(self, num_items: int) -> NDArray[np.int64]:
        """When each item was seen last: the number of the event, −1 if it never was."""
        latest = np.full(num_items, -1)
        _, items = self.events()
        latest[items] = np.arange(len(items))  # of equal ones, the last stays
        return latest

    def keep(
        self, users: NDArray[np.int64] | None = None, items: NDArray[np.int64] | None = None
    ) -> None:
        """Let only these users, or only these items, remain, numbered anew in this order."""
        self._begin_anew(users, items)

    def _forget(self) -> None:
        self._user, self._item = self._rows(), self._rows()
        # Places count from 1, since fresh memory is 0: that stands for none.
        self._before, self._last = self._rows(), self._rows()
        self._count = self._rows()
        self._size = 0

    def _rows(self) -> GrowingRows:
        return GrowingRows(_INT32, budget=self._budget)

    def _begin_anew(
        self, users: NDArray[np.int64] | None = None, items: NDArray[np.int64] | None = None
    ) -> None:
        """Hold only what counts, in parts: there is no copy of all of it in memory."""
        (user, item), counted = self._held(0, self._size), self._counted()
        numbers = _numbers(user, users), _numbers(item, items)
        self._forget()
        self.generation += 1
        self._tidy_at = max(2 * int(counted.sum()), _LEAST)
        for start in range(0, len(user), _PART):
            among = counted[start : start + _PART]
            parts = (one[start : start + _PART][among] for one in (user, item))
            self.add(*(n if to is None else to[n] for n, to in zip(parts, numbers, strict=True)))


def _make_room(rows: GrowingRows, needed: int) -> None:
    if needed > len(rows.flat):
        rows.grow(max(needed, len(rows.flat) * 9 // 8))


def _numbers(before: NDArray[np.int32], kept: NDArray[np.int64] | None) -> NDArray[np.int32] | None:
    """The new number of each old one, −1 if it is not kept; None if all stay as they are."""
    if kept is None:
        return None
    size = max(int(before.max(initial=-1)), int(kept.max(initial=-1))) + 1
    numbers = np.full(size, -1, np.int32)
    numbers[kept] = np.arange(len(kept))
    return numbers


@compiled
def _append(
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    size: int,
    user: NDArray[np.int32],
    item: NDArray[np.int32],
    before: NDArray[np.int32],
    last: NDArray[np.int32],
    count: NDArray[np.int32],
) -> int:
    """Put events behind the first `size`, each with the place of the one before it of its user."""
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
    users: NDArray[np.int64],
    item: NDArray[np.int32],
    before: NDArray[np.int32],
    last: NDArray[np.int32],
    starts: NDArray[np.int64],
    items: NDArray[np.int32],
) -> None:
    """The items of the events that count."""
    for row in range(len(users)):
        if starts[row] == starts[row + 1]:
            continue
        place = last[users[row]]
        for at in range(starts[row], starts[row + 1]):
            items[at] = item[place - 1]
            place = before[place - 1]


@compiled
def _latest(user: NDArray[np.int32], most: int, counts: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which events are among the latest of their users."""
    among = np.zeros(len(user), np.bool_)
    for at in range(len(user) - 1, -1, -1):
        counts[user[at]] += 1
        among[at] = counts[user[at]] <= most
    return among
