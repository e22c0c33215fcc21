"""Search for the best items among groups of items with equal scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.inference.scores import UserScores
from celrec.runtime.jit import Doubles, Floats, Ints, ShortInts, compiled

_NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class ItemGroups:
    """Groups of items with equal scores, and the order of the members within each group.

    >>> groups = ItemGroups.of(np.array([5, 2, 5, 5]), order=np.array([3, 1, 0, 2], np.int32))
    >>> groups.members, groups.starts
    (array([1, 3, 0, 2], dtype=int32), array([0, 1, 4]))
    >>> groups.only(np.array([True, False, True, False])).members
    array([0, 2], dtype=int32)
    """

    starts: NDArray[np.int64]
    """(groups + 1): offsets of the groups in `members`; no group is empty."""
    members: NDArray[np.int32]
    own: NDArray[np.float32]
    """What each member adds to the score of its group, such as a bias; empty if nothing."""

    @classmethod
    def of(
        cls,
        labels: NDArray[np.int64],
        order: NDArray[np.int32],
        own: NDArray[np.float32] | None = None,
    ) -> ItemGroups:
        """Group items by label. Members are sorted by `own`, highest first, then as in `order`."""
        if own is not None:
            order = order[np.argsort(-own[order], kind="stable")]
        starts = np.zeros(int(labels.max(initial=-1)) + 2, np.int64)
        np.cumsum(np.bincount(labels), out=starts[1:])
        members = by_label(labels, order, starts)
        return cls(_distinct(starts), members, _NOTHING if own is None else own[members])

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.starts) - 1

    @property
    def first(self) -> NDArray[np.int32]:
        """The first member of each group."""
        return self.members[self.starts[:-1]]

    def only(self, kept: NDArray[np.bool_]) -> ItemGroups:
        """The groups without the items for which the mask is false."""
        stay = kept[self.members]
        before = np.concatenate([[0], np.cumsum(stay)])
        own = self.own[stay] if len(self.own) else self.own
        return ItemGroups(_distinct(before[self.starts]), self.members[stay], own)


def _distinct(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    distinct: NDArray[np.int64] = starts[np.concatenate([[True], np.diff(starts) > 0])]
    return distinct


_MOST_ITEMS = 1 << 16  # items per block, which bounds the memory for their vectors


class Best(NamedTuple):
    """The best items per query (a user or an item), best first."""

    items: NDArray[np.int32]
    """(queries, k): item numbers, −1 where there are fewer than k."""
    scores: NDArray[np.float32]
    """(queries, k): predictions, −∞ where there is no item."""


class Skipped(NamedTuple):
    """Items to leave out per query, as offsets and item numbers (CSR), like `SeenItems.of`."""

    starts: NDArray[np.int64]
    items: NDArray[np.int32]


def search(
    queries: UserScores, groups: ItemGroups, rank: NDArray[np.int32], k: int, skipped: Skipped
) -> Best:
    """The k best items per query; ties are broken by the lower rank.

    Scores are raw scores (group plus own part), not predictions yet. Groups are scored block by
    block. Members of a group are sorted, so a group is left at the first member that is worse
    than the k-th best so far. Skipped items are passed over, however many there are.
    """
    count, first = len(skipped.starts) - 1, torch.from_numpy(groups.first.astype(np.int64))
    scores, items = np.empty((count, k)), np.empty((count, k), np.int32)
    filled = np.zeros(count, np.int64)
    mark = np.zeros(len(rank) if len(skipped.items) else 0, np.int32)
    step = max(min(queries.at_once // max(count, 1), _MOST_ITEMS), 1)
    for start in range(0, len(groups), step):
        some = slice(start, start + step)
        choose(
            queries.scores(first[some]).numpy(),
            groups.starts[start : start + step + 1],
            groups.members,
            groups.own,
            rank,
            *skipped,
            mark,
            scores,
            items,
            filled,
        )
    sort_best(scores, items, rank, filled)
    return Best(items, scores.astype(np.float32))


_BLOCK = 64  # groups that are checked at once


@compiled
def by_label(labels: Ints, order: ShortInts, starts: Ints) -> ShortInts:
    """Items sorted by label, and within a label in the given order (a counting sort).

    `starts` are the offsets of the labels.
    """
    free = starts[:-1].copy()
    members = np.empty(len(order), np.int32)
    for at in range(len(order)):
        label = labels[order[at]]
        members[free[label]] = order[at]
        free[label] += 1
    return members


@compiled
def mark_seen(mark: ShortInts, seen: ShortInts, user: int) -> None:
    """Note the items that a user has seen in the scratch space, unless it is empty."""
    for item in seen:
        if item < len(mark):
            mark[item] = user + 1


@compiled
def take_members(
    score: float,
    start: int,
    end: int,
    members: ShortInts,
    own: Floats,
    rank: ShortInts,
    mark: ShortInts,
    user: int,
    values: Doubles,
    items: ShortInts,
    size: int,
) -> int:
    """Put the members of a group that are good enough among the best of a user.

    `start` and `end` are its places in `members`. `values` and `items` are a heap of `size` items;
    returns how many it has then.
    """
    k, owned, marked = len(values), len(own) > 0, len(mark) > 0
    floor = values[0] if size == k else -np.inf
    for at in range(start, end):
        item = members[at]
        value = score + own[at] if owned else score
        if not value >= floor or (size == k and value == floor and rank[item] > rank[items[0]]):
            break  # the following members are not better
        if marked and mark[item] == user + 1:
            continue
        if size < k:
            _push(values, items, rank, size, value, item)
            size += 1
        else:
            _sink(values, items, rank, k, value, item)
        if size == k:
            floor = values[0]
    return size


@compiled
def choose(
    scores: Floats,
    starts: Ints,
    members: ShortInts,
    own: Floats,
    rank: ShortInts,
    seen_starts: Ints,
    seen: ShortInts,
    mark: ShortInts,
    best: Doubles,
    chosen: ShortInts,
    filled: Ints,
) -> None:
    """Update the best items of each user with the members of a block of groups.

    The score of a member is that of its group plus its `own` part, if any; members are sorted by
    it, then by rank. `starts` are the offsets of the groups that have a column in `scores`.
    `mark` is scratch space: per item, the last user who has seen it; empty if no user has seen any.
    """
    users, groups = scores.shape
    k, owned = best.shape[1], len(own) > 0
    for user in range(users):
        row, values, items = scores[user], best[user], chosen[user]
        mark_seen(mark, seen[seen_starts[user] : seen_starts[user + 1]], user)
        size = filled[user]
        floor = values[0] if size == k else -np.inf
        for begin in range(0, groups, _BLOCK):
            stop = min(begin + _BLOCK, groups)
            # Branch-free: most blocks of groups have no winner any more.
            some = False
            if owned:
                for group in range(begin, stop):
                    some |= np.float64(row[group]) + own[starts[group]] >= floor
            else:
                for group in range(begin, stop):
                    some |= row[group] >= floor
            if not some:
                continue
            for group in range(begin, stop):
                score, at, end = np.float64(row[group]), starts[group], starts[group + 1]
                if not (score + own[at] if owned else score) >= floor:
                    continue
                size = take_members(
                    score, at, end, members, own, rank, mark, user, values, items, size
                )
                if size == k:
                    floor = values[0]
        filled[user] = size


@compiled
def sort_best(best: Doubles, chosen: ShortInts, rank: ShortInts, filled: Ints) -> None:
    """Sort the best items of each user, best first; unfilled places get −1 and −∞."""
    for user in range(len(best)):
        values, items, size = best[user], chosen[user], filled[user]
        for end in range(size - 1, 0, -1):
            worst, item = values[0], items[0]
            _sink(values, items, rank, end, values[end], items[end])
            values[end], items[end] = worst, item
        values[size:] = -np.inf
        items[size:] = -1


@compiled
def _push(
    values: Doubles, items: ShortInts, rank: ShortInts, size: int, value: float, item: int
) -> None:
    """Add an item to a heap of `size` items."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if values[above] < value or (values[above] == value and rank[items[above]] > rank[item]):
            break
        values[at], items[at] = values[above], items[above]
        at = above
    values[at], items[at] = value, item


@compiled
def _sink(
    values: Doubles, items: ShortInts, rank: ShortInts, size: int, value: float, item: int
) -> None:
    """Replace the root of a heap of `size` items."""
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            values[other] < values[below]
            or (values[other] == values[below] and rank[items[other]] > rank[items[below]])
        ):
            below = other
        if value < values[below] or (value == values[below] and rank[item] > rank[items[below]]):
            break
        values[at], items[at] = values[below], items[below]
        at = below
    values[at], items[at] = value, item
