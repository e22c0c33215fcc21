"""Where the clusters of a split tree stand."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """A cluster's line in the picture, from where it was split off to the end."""

    cluster: int
    parent: int | None
    born: int
    """Its place in the order of splits."""
    place: int
    """Its place from top to bottom."""
    folded: int
    """How many clusters that came from it have no line of their own."""


class TreeLayout:
    """Clusters from top to bottom so that no line crosses another.

    A cluster stands below the one that it came from, and those that were split off
    later stand nearer to it. At most `most` clusters get a line, the first ones; those that
    came later count as folded into the nearest one that they came from.

    >>> [lane.cluster for lane in TreeLayout([-1, 0, 0, 1]).lanes]
    [0, 2, 1, 3]
    >>> [(lane.cluster, lane.folded) for lane in TreeLayout([-1, 0, 0, 1], most=2).lanes]
    [(0, 1), (1, 1)]
    """

    def __init__(self, parents: Sequence[int], most: int = 200) -> None:
        born = _born(parents)
        order = sorted(range(len(parents)), key=born.__getitem__)
        shown = set(order[:most])
        folded = dict.fromkeys(shown, 0)
        children: dict[int, list[int]] = {}
        roots = []
        for cluster in order:
            parent = parents[cluster]
            if cluster not in shown:
                while parent >= 0 and parent not in shown:
                    parent = parents[parent]
                if parent >= 0:
                    folded[parent] += 1
            elif parent >= 0 and parent in shown:
                children.setdefault(parent, []).append(cluster)
            else:
                roots.append(cluster)
        self.lanes: list[Lane] = []
        waiting = list(reversed(roots))
        while waiting:
            cluster = waiting.pop()
            parent = parents[cluster]
            known = parent if parent in shown else None
            place = len(self.lanes)
            self.lanes.append(Lane(cluster, known, born[cluster], place, folded[cluster]))
            waiting += children.get(cluster, [])  # so the one that was born last comes next
        self.count = len(parents)
        """How many clusters there are."""

    @property
    def splits(self) -> int:
        """How many of the lines begin at another."""
        return sum(lane.parent is not None for lane in self.lanes)


def _born(parents: Sequence[int]) -> list[int]:
    """A number for each cluster that is above that of the one it came from, else by number."""
    children: dict[int, list[int]] = {}
    ready = []
    for cluster, parent in enumerate(parents):
        if parent >= 0:
            children.setdefault(parent, []).append(cluster)
        else:
            ready.append(cluster)
    born = [len(parents)] * len(parents)
    number = 0
    while ready:  # already a heap, since it is sorted
        cluster = heapq.heappop(ready)
        born[cluster], number = number, number + 1
        for child in children.get(cluster, []):
            heapq.heappush(ready, child)
    return born
