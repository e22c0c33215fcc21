"""Compiled loops of top-k search.

The best items so far of each user are a heap with the worst one at the root: float64 scores and
item numbers. Of two items with equal scores, the one with the lower rank is better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import compiled

_BLOCK = 64  # groups that are checked at once


@compiled
def by_label(
    labels: NDArray[np.int64], order: NDArray[np.int32], starts: NDArray[np.int64]
) -> NDArray[np.int32]:
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
def choose(
    scores: NDArray[np.float32],
    starts: NDArray[np.int64],
    members: NDArray[np.int32],
    own: NDArray[np.float32],
    rank: NDArray[np.int32],
    seen_starts: NDArray[np.int64],
    seen: NDArray[np.int32],
    mark: NDArray[np.int32],
    best: NDArray[np.float64],
    chosen: NDArray[np.int32],
    filled: NDArray[np.int64],
) -> None:
    """Update the best items of each user with the members of a block of groups.

    The score of a member is that of its group plus its `own` part, if any; members are sorted by
    it, then by rank. `starts` are the offsets of the groups that have a column in `scores`.
    `mark` is scratch space: per item, the last user who has seen it; empty if no user has seen any.
    """
    users, groups = scores.shape
    k, owned, marked = best.shape[1], len(own) > 0, len(mark) > 0
    for user in range(users):
        row, values, items = scores[user], best[user], chosen[user]
        if marked:
            for at in range(seen_starts[user], seen_starts[user + 1]):
                if seen[at] < len(mark):
                    mark[seen[at]] = user + 1
        size = filled[user]
        floor = values[0] if size == k else -np.inf
        for begin in range(0, groups, _BLOCK):
            end = min(begin + _BLOCK, groups)
            # Branch-free: most blocks of groups have no winner any more.
            some = False
            if owned:
                for group in range(begin, end):
                    some |= np.float64(row[group]) + own[starts[group]] >= floor
            else:
                for group in range(begin, end):
                    some |= row[group] >= floor
            if not some:
                continue
            for group in range(begin, end):
                score = np.float64(row[group])
                for at in range(starts[group], starts[group + 1]):
                    item = members[at]
                    value = score + own[at] if owned else score
                    if not value >= floor or (
                        size == k and value == floor and rank[item] > rank[items[0]]
                    ):
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
        filled[user] = size


@compiled
def sort_best(
    best: NDArray[np.float64],
    chosen: NDArray[np.int32],
    rank: NDArray[np.int32],
    filled: NDArray[np.int64],
) -> None:
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
    values: NDArray[np.float64],
    items: NDArray[np.int32],
    rank: NDArray[np.int32],
    size: int,
    value: float,
    item: int,
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
    values: NDArray[np.float64],
    items: NDArray[np.int32],
    rank: NDArray[np.int32],
    size: int,
    value: float,
    item: int,
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
