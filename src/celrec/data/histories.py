"""Interactions grouped by id: those of each id, and the latest items of each user."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.id_map import UNSEEN
from celrec.data.interactions import Interactions


class Grouped:
    """The interactions sorted by user, by item, or by the id in a further column.

    The interactions of id j are at starts[j] … starts[j + 1] − 1 of the sorted arrays; `order`
    has their rows in the log.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2, 1], "item": [7, 7, 9], "rating": [4.0, 3.0, 5.0]})
    >>> by_item = Grouped(log, "items")
    >>> by_item.starts, by_item.partners, log.target[by_item.order]
    (array([0, 2, 3]), tensor([0, 1, 0]), array([4., 3., 5.], dtype=float32))
    """

    def __init__(self, log: Interactions, side: str) -> None:
        """Sort `log`, which has no unseen users or items, by `side`.

        `side` is users, items or a further column. The partners of a further column are items;
        rows without an id in it are dropped.
        """
        if side in ("users", "items"):
            own, other = (log.item, log.user) if side == "items" else (log.user, log.item)
            size = log.num_items if side == "items" else log.num_users
        else:
            column = log.columns[side]
            own, other, size = column.values, log.item, len(column.ids)
        rows = np.flatnonzero(own >= 0)
        self.counts: NDArray[np.int64] = np.bincount(own[rows], minlength=size)
        self.starts: NDArray[np.int64] = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(self.counts)]
        )
        self.order: NDArray[np.int64] = rows[np.argsort(own[rows], kind="stable")]
        self.partners: Tensor = torch.from_numpy(other[self.order].astype(np.int64))


class Histories:
    """The latest items of each user before a given event.

    Histories are built from training data, for its own rows or for other events such as test
    data. A history contains items of strictly earlier training events only, so events with the
    same timestamp do not leak into it. Items are oldest first, padded with UNSEEN on the left.
    Without timestamps, rows are in the order of time and other events come after all of them.

    Memory is at most 24 bytes per row and 8 per user. A query takes O(1) for a row of the log and
    O(log rows) for another event.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2, 1, 1], "item": [10, 11, 12, 13],
    ...                    "rating": [5.0] * 4, "time": [1, 1, 2, 3]})
    >>> histories = Histories(log)
    >>> histories.at_rows(np.array([2, 3]), length=2)
    array([[-1,  0],
           [ 0,  2]], dtype=int32)
    >>> later = celrec.read({"user": [1, 2], "item": [11, 13], "rating": [4.0, 4.0],
    ...                      "time": [3, 9]}, like=log)
    >>> histories.before(later, length=2)
    array([[ 0,  2],
           [-1,  1]], dtype=int32)
    """

    def __init__(self, log: Interactions) -> None:
        self._log = log
        if log.timestamp is None:
            order = np.argsort(log.user, kind="stable")
            self._moments = None
        else:
            order = np.lexsort((log.timestamp, log.user))
            self._moments = np.unique(log.timestamp)
        order = order[log.user[order] >= 0]
        self._items = log.item[order]
        self._keys = _key(log.user[order], self._moments_of_rows(order))
        users = np.arange(log.num_users + 1)  # the last entry is for UNSEEN (−1)
        self._starts = np.searchsorted(self._keys, _key(users, np.zeros_like(users)))
        self._ends = np.zeros(len(log), np.int32)
        self._ends[order] = np.searchsorted(self._keys, self._keys)

    def __deepcopy__(self, memo: dict[int, Any]) -> Histories:
        """Return the object itself, which is immutable."""
        return self

    def at_rows(self, rows: NDArray[np.integer], length: int) -> NDArray[np.int32]:
        """The latest `length` items before each of these rows of the log itself."""
        return self._latest(self._log.user[rows], self._ends[rows], length)

    def before(self, events: Interactions, length: int) -> NDArray[np.int32]:
        """The latest `length` items before each of these events, which use the log's dense ids."""
        if self._moments is None or events.timestamp is None:
            return self.latest(events.user, length)
        moments = np.searchsorted(self._moments, events.timestamp)
        ends = np.searchsorted(self._keys, _key(events.user, moments))
        return self._latest(events.user, ends, length)

    def latest(self, users: NDArray[np.integer], length: int) -> NDArray[np.int32]:
        """The latest `length` items of each of these users, after all events."""
        return self._latest(users, self._starts[users + 1], length)

    def _moments_of_rows(self, rows: NDArray[np.integer]) -> NDArray[np.integer]:
        if self._moments is None or self._log.timestamp is None:
            return rows
        moments: NDArray[np.int64] = np.searchsorted(self._moments, self._log.timestamp[rows])
        return moments

    def _latest(
        self, users: NDArray[np.integer], ends: NDArray[np.integer], length: int
    ) -> NDArray[np.int32]:
        places = ends[:, None] - np.arange(length, 0, -1)
        known = (places >= self._starts[users][:, None]) & (users >= 0)[:, None]
        latest = np.full((len(users), length), UNSEEN, np.int32)
        latest[known] = self._items[places[known]]
        return latest


def _key(users: NDArray[np.integer], moments: NDArray[np.integer]) -> NDArray[np.int64]:
    """A key that sorts by user, then by moment; both fit in 31 bits."""
    return users.astype(np.int64) << 32 | moments.astype(np.int64)
