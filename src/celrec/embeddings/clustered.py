"""Clustered embeddings: the ids of a cluster share one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.id_rows import IdRows, narrowest_dtype
from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget


class ClusteredEmbedding(SharedRows):
    """A table of `max_clusters` rows, and the cluster of every id.

    The vector of id j is B_q(S_q(j)). All ids start in cluster 0. Clusters 0 …
    `num_clusters` − 1 are active; a split activates the next row as a copy of its parent's.
    `weight` is allocated once, so an optimiser built on it stays valid. `assignment` is a buffer
    of the narrowest integers that fit, saved, moved and exported with the module.

    An unseen id has the row of `unseen_cluster` in training, serving and export.

    >>> table = ClusteredEmbedding(5, 2, max_clusters=3)
    >>> table.split(0, torch.tensor([3, 4]))
    1
    >>> table.assignment.tolist()[:5]
    [0, 0, 0, 1, 1]
    >>> bool((table(torch.tensor(0)) == table(torch.tensor(4))).all())
    True
    >>> table.memory()
    Memory(table=16, index=6)
    """

    traits = Traits(low_time=False, low_memory=True, incremental=True)
    per_id = "assignment"

    assignment: Tensor
    """The cluster of every id; the last entry is the cluster of unseen ids."""
    parent: Tensor
    """The split tree: the cluster that each cluster was split from, -1 for initial ones."""
    _active: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        max_clusters: int,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        if not 1 <= max_clusters <= num_embeddings:
            raise CelrecError(
                f"max_clusters must lie in 1 … {num_embeddings:,} (the ids), not {max_clusters}"
            )
        self.max_clusters, self._ids = max_clusters, IdRows()
        self.weight = nn.Parameter(
            torch.empty(max_clusters, embedding_dim, device=device, dtype=dtype)
        )
        index = narrowest_dtype(max_clusters)
        self.register_buffer(
            "assignment", torch.zeros(num_embeddings + 1, dtype=index, device=device)
        )
        self.register_buffer(
            "parent", torch.full((max_clusters,), -1, dtype=torch.int32, device=device)
        )
        self.register_buffer("_active", torch.ones((), dtype=torch.int64, device=device))
        self._probe: Callable[[Tensor], Tensor] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise rows from N(0, 1/dim), so that their norms are about 1."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of the clusters of `ids`, or the vectors of a probe."""
        return super().vectors(ids) if self._probe is None else self._probe(ids)

    @property
    def plain(self) -> bool:
        """Whether a lookup only reads rows: no padding and no probe."""
        return super().plain and self._probe is None

    @contextmanager
    def probing(self, probe: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Inside the block `probe(ids)` gives the vectors, to evaluate gradients or other rows."""
        self._probe = probe
        try:
            yield
        finally:
            self._probe = None

    def row_of(self, ids: Tensor) -> Tensor:
        return self.assignment[self._place(ids)].long()

    @property
    def num_clusters(self) -> int:
        """The number of active clusters."""
        return int(self._active)

    @property
    def num_rows(self) -> int:
        return self.num_clusters

    @property
    def unseen_cluster(self) -> int:
        """The cluster of unseen ids."""
        return int(self.assignment[-1])

    @unseen_cluster.setter
    def unseen_cluster(self, cluster: int) -> None:
        self._check_active(cluster)
        self.assignment[-1] = cluster

    def sizes(self) -> Tensor:
        """The number of ids in each active cluster."""
        return torch.bincount(self.assignment[:-1].long(), minlength=self.num_clusters)

    def members(self, cluster: int) -> Tensor:
        """The ids of a cluster, in ascending order."""
        self._check_active(cluster)
        return torch.nonzero(self.assignment[:-1] == cluster).squeeze(1)

    @torch.no_grad()
    def split(self, cluster: int, leaving: Tensor) -> int:
        """Move the ids `leaving` from `cluster` to a new one with a copy of its row.

        Predictions do not change. Returns the number of the new cluster.
        """
        self._check_active(cluster)
        seen = (leaving >= 0) & (leaving < self.num_embeddings)
        if not len(leaving) or not bool((seen & (self.row_of(leaving) == cluster)).all()):
            raise CelrecError(f"leaving must be one or more members of cluster {cluster}")
        if len(leaving) >= int((self.assignment[:-1] == cluster).sum()):
            raise CelrecError(f"leaving: at least one member must stay in cluster {cluster}")
        new = self.open(cluster)
        self.assignment[leaving] = new
        return new

    @torch.no_grad()
    def open(self, parent: int) -> int:
        """Activate the next cluster with a copy of the row of `parent`, and return its number.

        The new cluster is empty; the caller must assign members to it.
        """
        return self.open_all([parent])[0]

    @torch.no_grad()
    def open_all(self, parents: Sequence[int]) -> range:
        """Activate one cluster per parent; a parent may be a cluster opened in the same call."""
        first = self.num_clusters
        new = range(first, first + len(parents))
        if new.stop > self.max_clusters:
            raise CelrecError(f"all {self.max_clusters} clusters are in use; raise max_clusters")
        origins: list[int] = []
        for parent in parents:
            origins.append(origins[parent - first] if parent >= first else parent)
        self._active.add_(len(parents))
        rows = self.weight.index_select(0, torch.tensor(origins, device=self.weight.device))
        self.weight[new.start : new.stop] = rows
        self.parent[new.start : new.stop] = torch.tensor(parents, dtype=torch.int32)
        return new

    @torch.no_grad()
    def reopen(self, cluster: int, parent: int) -> None:
        """Reuse an empty cluster as a child of `parent`, with a copy of its row.

        Clusters that were split from it become children of its previous parent.
        """
        closed = torch.arange(self.max_clusters, device=self.parent.device) == cluster
        self.parent.copy_(_without(self.parent, closed))
        self.weight[cluster] = self.weight[parent]
        self.parent[cluster] = parent

    @torch.no_grad()
    def merge(self, first: int, second: int) -> None:
        """Merge two clusters; the one with the lower number keeps its number and row.

        The clusters after the removed one are renumbered, and its children in the split tree
        become children of the other.
        """
        self._check_active(first)
        self._check_active(second)
        if first == second:
            raise CelrecError(f"cluster {first} cannot be merged with itself")
        kept, gone = sorted((first, second))
        last = self.num_clusters - 1
        number = torch.arange(self.num_clusters, device=self.assignment.device)
        renumbered = number - (number > gone).long()
        renumbered[gone] = kept
        self.assignment.copy_(renumbered[self.assignment.long()])
        parent = self.parent[: last + 1].long()
        parent = torch.where(parent >= 0, renumbered[parent], parent)
        self.weight[gone:last] = self.weight[gone + 1 : last + 1].clone()
        self.parent[gone:last] = parent[gone + 1 :]
        self.parent[last] = -1
        self._active -= 1

    @torch.no_grad()
    def assign(self, assignment: Tensor) -> None:
        """Assign every id to the given cluster; no active cluster may be empty."""
        self._check_clustering(assignment, self.num_clusters)
        self.assignment[:-1] = assignment

    @torch.no_grad()
    def start_from(self, assignment: Tensor) -> None:
        """Restart from a given clustering, with all its clusters active and without parents."""
        clusters = int(assignment.max()) + 1 if assignment.numel() else 0
        if clusters > self.max_clusters:
            raise CelrecError(f"{clusters} clusters do not fit in max_clusters={self.max_clusters}")
        self._check_clustering(assignment, clusters)
        self._active.fill_(clusters)
        self.parent.fill_(-1)
        self.assignment[:-1] = assignment
        self.unseen_cluster = 0

    def use_budget(self, budget: MemoryBudget) -> None:
        self._ids = IdRows(budget)
        self.assignment = self._ids.place(self.assignment)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids start in the cluster of unseen ids."""
        self._grow_ids(num_embeddings)
        self.assignment = self._ids.extended(
            self.assignment, num_embeddings + 1, self.assignment[-1]
        )

    @torch.no_grad()
    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these, given in ascending order, and renumber them from 0.

        Clusters that become empty are removed and the following ones renumbered, as `kept_rows`
        says; their children in the split tree become children of their parents. The cluster of
        unseen ids stays. If none of `ids` is in it, one more id is added to it, so that no
        cluster is empty.
        """
        rows = self.kept_rows(ids)
        places = torch.cat([ids, ids.new_tensor([self.num_embeddings])])
        self._keep_ids(ids)
        number = torch.full((self.max_clusters,), -1, device=rows.device)
        number[rows] = torch.arange(len(rows), device=rows.device)
        parent = _without(self.parent.long(), number < 0)
        self.parent.fill_(-1)
        self.parent[: len(rows)] = torch.where(parent >= 0, number[parent], -1)[rows].int()
        self.weight[: len(rows)] = self.weight[rows]
        self.assignment = self._ids.selected(self.assignment, places)
        self.assignment.copy_(number[self.assignment.long()])
        self._active.fill_(len(rows))
        alone = not bool((self.assignment[:-1] == self.assignment[-1]).any())
        self.grow(max(len(ids) + alone, self.max_clusters))

    def memory(self, *, training: bool = False) -> Memory:
        """When serving, the active rows and the assignment; while training, all allocations."""
        if not training:
            row = self.embedding_dim * self.weight.element_size()
            return Memory(self.num_clusters * row, self.assignment.nbytes)
        index = self.assignment.nbytes + self.parent.nbytes + self._active.nbytes
        return Memory(self.weight.nbytes, index)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, clusters={self.num_clusters} of {self.max_clusters}"

    def _fit(self, length: int) -> None:
        self.assignment = self._ids.zeros(self.assignment, length)
        self.num_embeddings = length - 1

    def _check_clustering(self, assignment: Tensor, clusters: int) -> None:
        if assignment.shape != (self.num_embeddings,):
            raise CelrecError(
                f"assignment must have one cluster per id ({self.num_embeddings:,}), "
                f"not shape {tuple(assignment.shape)}"
            )
        low, high = (int(end) for end in assignment.aminmax())
        if low < 0 or high >= clusters:
            inactive = low if low < 0 else high
            raise CelrecError(f"assignment names cluster {inactive}, which is not active")
        sizes = torch.bincount(assignment, minlength=clusters)
        if not bool(sizes.all()):
            raise CelrecError(f"cluster {int(sizes.argmin())} would be empty")

    def _check_active(self, cluster: int) -> None:
        if not 0 <= cluster < self.num_clusters:
            raise CelrecError(
                f"cluster must be an active one, 0 … {self.num_clusters - 1}, not {cluster}"
            )


def _without(parent: Tensor, closed: Tensor) -> Tensor:
    """The split tree without some clusters: children go to the nearest ancestor that stays."""
    while bool((orphan := (parent >= 0) & closed[parent.clamp(min=0)]).any()):
        parent = torch.where(orphan, parent[parent.clamp(min=0)], parent)
    return parent
