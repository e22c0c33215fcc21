"""What needs no taste: the same for everybody."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems

_USERS = 64  # at once


def item_means(learned: Interactions, events: Interactions) -> NDArray[np.float64]:
    """The mean target of each event's item, or of all that was learned where it is unseen.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 2, 1], "item": [7, 7, 9], "rating": [1.0, 3.0, 5.0]})
    >>> item_means(log, log)
    array([2., 2., 5.])
    """
    learned = learned.seen()
    counts = learned.item_counts
    sums = np.bincount(learned.item, learned.target, learned.num_items)
    mean = float(np.mean(learned.target, dtype=np.float64)) if len(learned) else 0.0
    means = np.append(np.where(counts > 0, sums / np.maximum(counts, 1), mean), mean)
    return means[events.item]  # the last place serves unseen items


def same_for_all(
    scores: NDArray[np.floating] | NDArray[np.integer],
    users: NDArray[np.int64],
    k: int,
    seen: SeenItems,
) -> NDArray[np.int32]:
    """For each user the k items with the highest scores that the user has not seen.

    A row for each, best first, −1 where there are fewer; of equal ones the lower number wins.

    >>> seen = SeenItems()
    >>> seen.add([0, 0], [2, 1])
    >>> same_for_all(np.array([3, 9, 9, 1]), np.array([0, 1]), 3, seen)
    array([[ 0,  3, -1],
           [ 1,  2,  0]], dtype=int32)
    """
    order = np.argsort(-scores.astype(np.float64), kind="stable").astype(np.int32)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    lists = np.full((len(users), k), -1, np.int32)
    for start in range(0, len(users), _USERS):
        some = users[start : start + _USERS]
        starts, items = seen.of(some)
        taken = np.diff(starts)
        near = min(k + int(taken.max(initial=0)), len(order))  # among so many there are k new ones
        new = np.ones((len(some), near), bool)
        row, at = np.repeat(np.arange(len(some)), taken), place[items]
        new[row[at < near], at[at < near]] = False
        rank = np.cumsum(new, 1)
        row, at = np.nonzero(new & (rank <= k))
        lists[start + row, rank[row, at] - 1] = order[at]
    return lists
