"""The loops that choose the best of many items.

The best so far of each user are a heap whose root is the worst of them: a score of 8 bytes and an
item. Of two items with equal scores, the one with the lower rank is better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import compiled

_AT_A_TIME = 64  # groups


@compiled
def by_label(
    labels: NDArray[np.int64], order: NDArray[np.int32], starts: NDArray[np.int64]
) -> NDArray[np.int32]:
    """All items by their labels, those with equal ones in the given order.

    `starts` tells where each label begins.
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
    """Let the best of each user be the best of them and of the members of some more groups.

    A member's score is that of its group and its `own`, if there is any; members are sorted by
    it, then by rank. `starts` are those of the groups that have a column in `scores`. `mark` has a
    place for each item, to note in whose seen items it is; it is empty if nobody has any.
    """
    users, groups = scores.shape
    k, owned, marked = best.shape[1], len(own) > 0, len(mark) > 0
    for user in range(users):
        row, values, items = scores[user], best[user], chosen[user]
        if marked:
            for at in range(seen_starts[user], seen_starts[user + 1]):
                if seen[at] < len(mark):
                    mark[seen[at]] = user + 1
        held = filled[user]
        floor = values[0] if held == k else -np.inf
        for begin in range(0, groups, _AT_A_TIME):
            end = min(begin + _AT_A_TIME, groups)
            # Without a branch for each: in most runs of groups there is no winner any more.
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
                        held == k and value == floor and rank[item] > rank[items[0]]
                    ):
                        break  # so are all that follow
                    if marked and mark[item] == user + 1:
                        continue
                    if held < k:
                        _push(values, items, rank, held, value, item)
                        held += 1
                    else:
                        _sink(values, items, rank, k, value, item)
                    if held == k:
                        floor = values[0]
        filled[user] = held


@compiled
def sort_best(
    best: NDArray[np.float64],
    chosen: NDArray[np.int32],
    rank: NDArray[np.int32],
    filled: NDArray[np.int64],
) -> None:
    """Sort the best of each user, best first; places that are not filled hold −1 and −∞."""
    for user in range(len(best)):
        values, items, held = best[user], chosen[user], filled[user]
        for end in range(held - 1, 0, -1):
            worst, item = values[0], items[0]
            _sink(values, items, rank, end, values[end], items[end])
            values[end], items[end] = worst, item
        values[held:] = -np.inf
        items[held:] = -1


@compiled
def _push(
    values: NDArray[np.float64],
    items: NDArray[np.int32],
    rank: NDArray[np.int32],
    held: int,
    value: float,
    item: int,
) -> None:
    """Add one to a heap that holds so many."""
    at = held
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
    held: int,
    value: float,
    item: int,
) -> None:
    """Put one in the place of the root of a heap that holds so many."""
    at = 0
    while True:
        below = 2 * at + 1
        if below >= held:
            break
        other = below + 1
        if other < held and (
            values[other] < values[below]
            or (values[other] == values[below] and rank[items[other]] > rank[items[below]])
        ):
            below = other
        if value < values[below] or (value == values[below] and rank[item] > rank[items[below]]):
            break
        values[at], items[at] = values[below], items[below]
        at = below
    values[at], items[at] = value, item
