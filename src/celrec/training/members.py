"""Who is in which cluster, in both directions, while both change all the time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.training._online_kernels import enlist, list_members, move


class Members:
    """The members of each cluster of a table, as linked lists: each change takes the same time.

    Ids are members from their first event on. `sizes` and `events` tell of each cluster how
    many members it has, and how many events those have had together.
    """

    def __init__(self, table: ClusteredEmbedding) -> None:
        self._table = table
        self.sizes = np.zeros(table.max_clusters, np.int64)
        self.events = np.zeros(table.max_clusters, np.int64)
        self._head = np.full(table.max_clusters, -1, np.int32)
        self._after = self._before = np.empty(0, np.int32)
        self.grow(table.num_embeddings)

    def grow(self, ids: int) -> None:
        """Make room for more ids."""
        more = np.full(ids - len(self._after), -1, np.int32)
        self._after = np.concatenate([self._after, more])
        self._before = np.concatenate([self._before, more])

    def count(
        self, ids: NDArray[np.int64], new: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        """Take notice of events: the different ids, how often each occurs, and who is new."""
        assignment = self._table.assignment.numpy()
        clusters = assignment[new].astype(np.int64)
        enlist(new, clusters, self._head, self._after, self._before)
        np.add.at(self.sizes, clusters, 1)
        np.add.at(self.events, assignment[ids], times)

    def move(
        self, ids: NDArray[np.int64], goals: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> int:
        """Move ids to other clusters; one that is the last of its cluster stays.

        `counts` are the events of all ids. Gives how many moved.
        """
        return move(
            ids,
            goals,
            counts,
            self._table.assignment.numpy(),
            self.sizes,
            self.events,
            self._head,
            self._after,
            self._before,
            1,
        )

    def merge(self, cluster: int, goal: int, counts: NDArray[np.int64]) -> None:
        """Move all members of a cluster to another one."""
        everybody = self.of(cluster)
        move(
            everybody,
            np.full(len(everybody), goal),
            counts,
            self._table.assignment.numpy(),
            self.sizes,
            self.events,
            self._head,
            self._after,
            self._before,
            0,
        )

    def of(self, cluster: int) -> NDArray[np.int64]:
        """The members of a cluster, those that joined last first."""
        return list_members(cluster, int(self.sizes[cluster]), self._head, self._after)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        parts = (self.sizes, self.events, self._head, self._after, self._before)
        return sum(part.nbytes for part in parts)

    def state_dict(self) -> dict[str, Any]:
        """The lists: the order of their members matters for what comes."""
        return {name: torch.from_numpy(getattr(self, name)) for name in _PARTS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        for name in _PARTS:
            setattr(self, name, state[name].numpy().copy())


_PARTS = ("sizes", "events", "_head", "_after", "_before")
