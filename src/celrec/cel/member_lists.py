"""The members of each cluster as linked lists, for streams, where ids come and move often."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.cel.member_kernels import (
    Lists,
    crowded_clusters,
    enlist,
    list_members,
    move,
    relink,
)
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.runtime.memory_budget import GrowingRows, MemoryBudget

_INT32 = np.dtype(np.int32)


class MemberLists:
    """The members of each cluster of a table, as linked lists: a move takes constant time.

    Ids are members from their first event on. `sizes` has the number of members of each cluster,
    `events` the number of events of its members.
    """

    def __init__(self, table: ClusteredEmbedding, budget: MemoryBudget | None = None) -> None:
        self._table, self._budget = table, budget
        self.all_events = 0
        """The number of events of all clusters."""
        self._begin()

    def _begin(self) -> None:
        clusters = self._table.max_clusters
        self.sizes, self.events = np.zeros(clusters, np.int64), np.zeros(clusters, np.int64)
        self._head = np.full(clusters, -1, np.int32)
        self._next, self._last = (GrowingRows(_INT32, budget=self._budget) for _ in range(2))
        self._after, self._before = self._next.first(0), self._last.first(0)
        self.grow(self._table.num_embeddings)

    def grow(self, ids: int) -> None:
        """Make room for more ids."""
        known = len(self._after)
        del self._after, self._before  # views would keep them from growing in place
        for rows in (self._next, self._last):
            rows.grow(ids)
            rows.flat[known:ids] = -1
        self._after, self._before = self._next.first(ids), self._last.first(ids)

    def count(
        self, ids: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count the events of these ids, `counts` being those of all ids before.

        Returns the unique ids, and those whose counts have reached 1, 2, 4, 8 … events.
        """
        self.all_events += len(ids)
        return enlist(ids, counts, self._table.assignment.numpy(), self._lists())

    def move(
        self, ids: NDArray[np.int64], goals: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> int:
        """Move ids to the clusters `goals`, one after the other; the number that moved.

        The last member of a cluster stays. `counts` are the events of all ids.
        """
        return move(ids, goals, counts, self._table.assignment.numpy(), self._lists(), 1)

    def merge(self, cluster: int, goal: int, counts: NDArray[np.int64]) -> None:
        """Move all members of a cluster to another one."""
        members = self.of(cluster)
        goals, assignment = np.full(len(members), goal), self._table.assignment.numpy()
        move(members, goals, counts, assignment, self._lists(), 0)

    def _lists(self) -> Lists:
        return Lists(self.sizes, self.events, self._head, self._after, self._before)

    def keep(
        self, ids: NDArray[np.int64], clusters: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Renumber after the table has kept only these ids and these clusters, in this order.

        `ids` and `clusters` are the old numbers; `counts` are the events by old ids.
        """
        numbers = np.full(len(self._after), -1)
        numbers[ids] = np.arange(len(ids))
        old = self._lists()
        self._begin()
        relink(clusters, numbers, counts, old, self._lists())
        self.all_events = int(self.events.sum())

    def of(self, cluster: int) -> NDArray[np.int64]:
        """The members of a cluster, the latest first."""
        return self.of_all(np.array([cluster]))[0]

    def of_all(self, clusters: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The members of clusters, one cluster after the other, and the offset of each cluster."""
        return list_members(clusters, self._lists())

    def crowded(self, ids: NDArray[np.int64], most: float) -> NDArray[np.int64]:
        """The clusters of ids with several members and more than `most` events, descending."""
        return crowded_clusters(ids, self._table.assignment.numpy(), self._lists(), most)

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(part.nbytes for part in self._lists())

    def state_dict(self) -> dict[str, Any]:
        """The lists; the order within them affects later splits."""
        return {name: torch.from_numpy(getattr(self, name)) for name in _PARTS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._begin()
        self.grow(len(state["_after"]))
        for name in _PARTS:
            getattr(self, name)[:] = state[name].numpy()
        self.all_events = int(self.events.sum())


_PARTS = ("sizes", "events", "_head", "_after", "_before")
