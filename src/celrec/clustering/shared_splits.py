"""Splitting clusters until none is crowded, whose members are spread over processes."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from celrec.clustering.ranks import Ranks
from celrec.clustering.shared_cuts import shared_cuts

Ints = NDArray[np.int64]


class Crowd(NamedTuple):
    """The members of some clusters that are here, a row each."""

    group: Ints
    """The place of its cluster among them."""
    pulls: NDArray[np.float64]
    """How it would like its row to change."""
    counts: Ints
    """Its events."""
    numbers: Ints
    """Its number among those of all processes."""


def shared_splits(
    clusters: Ints, sizes: Ints, events: Ints, crowd: Crowd, most: float, fresh: Ints, ranks: Ranks
) -> tuple[Ints, Ints]:
    """Cut clusters in two until none of several members has more than `most` events.

    Those with most events first, as long as there is a `fresh` number for a new one. `sizes` and
    `events` are those of the clusters in all processes, which take part together. Gives the
    cluster of each member here, and of every new cluster the one that it was cut from.

    All clusters that are too crowded are cut at once, then all that came of them and still are:
    see `shared_cuts` for what is sent. Which of these cuts there are numbers for is known then.

    >>> clusters, everybody = np.array([4]), np.zeros(4, np.int64)
    >>> pulls = np.array([[0.1], [1.0], [0.0], [1.1]])
    >>> crowd = Crowd(everybody, pulls, np.full(4, 5), np.arange(4))
    >>> sizes, events = np.array([4]), np.array([20])
    >>> shared_splits(clusters, sizes, events, crowd, 10.0, np.array([7, 8]), Ranks.alone())
    (array([4, 7, 4, 7]), array([4]))
    """
    # Parts of clusters: first the clusters, then what stays and what leaves at each cut.
    sizes, events = sizes.copy(), events.copy()
    above, cut = np.full(len(clusters), -1), np.full(len(clusters), -1)
    part, level = crowd.group.copy(), np.arange(len(clusters))
    while True:
        level = level[(events[level] > most) & (sizes[level] > 1)]
        if not len(level) or not len(fresh):
            break
        if len(level) > len(fresh):  # nobody with fewer events has a turn
            level = level[events[level] >= np.sort(events[level])[-len(fresh)]]
        place = np.full(len(sizes), -1)
        place[level] = np.arange(len(level))
        here = np.flatnonzero(place[part] >= 0)
        told = place[part[here]], crowd.pulls[here], crowd.counts[here], crowd.numbers[here]
        leaving, members, kept = shared_cuts(*told, len(level), ranks)
        cut[level] = len(sizes) + 2 * np.arange(len(level))
        part[here] = cut[part[here]] + leaving
        above = np.concatenate([above, np.repeat(level, 2)])
        cut = np.concatenate([cut, np.full(2 * len(level), -1)])
        sizes = _with_both(sizes, members, sizes[level])
        events = _with_both(events, kept, events[level])
        level = np.arange(len(sizes) - 2 * len(level), len(sizes))
    names, parents = _named(clusters, events, above, cut, fresh)
    return names[part], parents


def _with_both(values: Ints, staying: Ints, whole: Ints) -> Ints:
    """The values of parts, and of those that stay and leave at some cuts behind them."""
    return np.concatenate([values, np.column_stack([staying, whole - staying]).reshape(-1)])


def _named(clusters: Ints, events: Ints, above: Ints, cut: Ints, fresh: Ints) -> tuple[Ints, Ints]:
    """The cluster of each part, and the parents of new ones: the most crowded is cut first."""
    names = np.full(len(events), -1)
    names[: len(clusters)] = clusters
    parents: list[int] = []
    waiting = [
        (-int(events[one]), int(clusters[one]), int(one)) for one in np.flatnonzero(above < 0)
    ]
    heapq.heapify(waiting)
    while waiting and len(parents) < len(fresh):
        _, name, one = heapq.heappop(waiting)
        if cut[one] < 0:
            continue
        stays, leaves = int(cut[one]), int(cut[one]) + 1
        names[stays], names[leaves] = name, fresh[len(parents)]
        parents.append(name)
        for after in (stays, leaves):
            heapq.heappush(waiting, (-int(events[after]), int(names[after]), after))
    for one in range(len(clusters), len(names)):  # those above come before
        if names[one] < 0:
            names[one] = names[above[one]]
    return names, np.array(parents, np.int64)
