"""eTree and JNKM: a full table, regularised towards the centres of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding, Memory, TableOptions, Traits
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.id_rows import narrowest_dtype
from celrec.embeddings.kmeans import draw_start, nearest
from celrec.errors import CelrecError

_SWEEPS = 5


class TreeEmbedding(FullEmbedding):
    """eTree and JNKM: one row (leaf) per id, with a penalty on distances to `rows` centres.

    The penalty on leaves b, centres c and, with `root`, their common root r is

        μ/2·Σ_j ‖b_j − c_{s(j)}‖² + μ/2·Σ_k ‖c_k − r‖²,

    where s(j) is the centre of leaf j and μ is `pull`. Without a root this is JNKM, joint k-means
    and factorisation; with it, eTree of depth three. The optimiser trains the leaves; `adapt`
    minimises the penalty over s, c and r in turn. With `share`, `as_served` and `settled` give
    each id the row of its centre, and leaves are used for training only.

    >>> table = TreeEmbedding(6, 2, rows=2)
    >>> table.grow_tree(torch.Generator().manual_seed(0))
    >>> before = table.penalty()
    >>> table.adapt()
    >>> bool(table.penalty() <= before)
    True
    >>> table.settled()
    ClusteredEmbedding(6, 2, clusters=2 of 2)
    """

    traits = Traits(low_time=False, low_memory=False, incremental=False)
    centre: Tensor
    root_row: Tensor
    assignment: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        root: bool = True,
        share: bool = True,
        pull: float = 20.0,
        **options: Unpack[TableOptions],
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, **options)
        if not 1 <= rows <= num_embeddings:
            raise CelrecError(f"rows must lie in 1 … {num_embeddings:,} (the ids), not {rows}")
        if not pull >= 0:
            raise CelrecError(f"pull must not be negative, not {pull}")
        self.root, self.share, self.pull = root, share, pull
        self.rows_requested = rows if share else None
        self.register_buffer("centre", torch.zeros_like(self.weight[:rows]))
        self.register_buffer("root_row", torch.zeros_like(self.weight[0]))
        assignment = torch.arange(num_embeddings, device=self.weight.device) % rows
        self.register_buffer("assignment", assignment.to(narrowest_dtype(rows)))
        self._serving = False

    def grow_tree(self, generator: torch.Generator) -> None:
        """Initialise the centres from the leaves by k-means++, and adapt the tree."""
        self.draw_centres(generator)
        self.adapt()

    @torch.no_grad()
    def draw_centres(self, generator: torch.Generator) -> None:
        """Initialise the centres from the leaves by k-means++, and the root as their mean."""
        leaves = self.weight[:-1]
        first = torch.randint(len(leaves), (1,), generator=generator)
        draws = torch.rand(len(self.centre) - 1, generator=generator, dtype=torch.float64)
        self.centre.copy_(draw_start(leaves, int(first), draws))
        self.root_row.copy_(self.centre.mean(0))

    def penalty(self) -> Tensor:
        """μ/2 times the sum of squared distances along the edges of the tree."""
        apart = (self.weight[:-1] - self.centre[self.assignment.long()]).square().sum()
        if self.root:
            apart = apart + (self.centre - self.root_row).square().sum()
        return self.pull / 2 * apart

    @torch.no_grad()
    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Alternate a few times: nearest centre of each leaf, best centres, best root."""
        leaves, count = self.weight[:-1], len(self.centre)
        if not bool(self.centre.any()):  # no start was drawn yet
            self.draw_centres(torch.Generator().manual_seed(0))
        for _ in range(_SWEEPS):
            labels = self._without_empty(*nearest(leaves, self.centre, exact=True))
            self.assignment.copy_(labels)
            sums = torch.zeros_like(self.centre).index_add_(0, labels, leaves)
            sizes = torch.bincount(labels, minlength=count).to(sums).unsqueeze(1)
            if self.root:
                self.centre.copy_((sums + self.root_row) / (sizes + 1))
                self.root_row.copy_(self.centre.mean(0))
            else:
                self.centre.copy_(torch.where(sizes > 0, sums / sizes.clamp(min=1), self.centre))
        self.weight[-1] = leaves.mean(0)

    def vectors(self, ids: Tensor) -> Tensor:
        """The leaves of `ids`; inside `as_served` with `share`, the rows of their centres."""
        if not (self._serving and self.share):
            return super().vectors(ids)
        seen = (ids >= 0) & (ids < self.num_embeddings)
        centre = self.centre[self.assignment[torch.where(seen, ids, 0)].long()]
        return torch.where(seen.unsqueeze(-1), centre, self.centre[self._unseen])

    @contextmanager
    def as_served(self) -> Iterator[None]:
        self._serving = True
        try:
            yield
        finally:
            self._serving = False

    @torch.no_grad()
    def settled(self) -> Embedding:
        """A clustered table of the centres, or without `share` a full table of the leaves."""
        like, padding = self.weight, self.padding_idx
        sizes = self.num_embeddings, self.embedding_dim
        if not self.share:
            full = FullEmbedding(*sizes, padding_idx=padding, device=like.device, dtype=like.dtype)
            full.weight.copy_(self.weight)
            return full
        used, labels = torch.unique(self.assignment.long(), return_inverse=True)
        shared = ClusteredEmbedding(
            *sizes,
            max_clusters=len(used),
            padding_idx=padding,
            device=like.device,
            dtype=like.dtype,
        )
        shared.start_from(labels)
        shared.weight.copy_(self.centre[used])
        shared.unseen_cluster = int(torch.bincount(labels).argmax())
        return shared

    def grow(self, num_embeddings: int) -> None:
        """Raise an error: the tree has a fixed set of leaves."""
        Embedding.grow(self, num_embeddings)

    def keep(self, ids: Tensor) -> None:
        """Raise an error: the tree has a fixed set of leaves."""
        Embedding.keep(self, ids)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "rows": len(self.centre)}

    def memory(self, *, training: bool = False) -> Memory:
        """While training, the leaves and the tree; when serving, the memory of `settled()`."""
        if not training:
            return self.settled().memory()
        table = self.weight.nbytes + self.centre.nbytes + self.root_row.nbytes
        return Memory(table, self.assignment.nbytes)

    @property
    def _unseen(self) -> int:
        """The centre of unseen ids: the one with the most leaves."""
        return int(torch.bincount(self.assignment.long()).argmax())

    def _without_empty(self, labels: Tensor, squares: Tensor) -> Tensor:
        """Give each empty centre a leaf, in the order of the reduction of the penalty."""
        sizes = torch.bincount(labels, minlength=len(self.centre)).tolist()
        empty = [centre for centre, size in enumerate(sizes) if not size]
        if not empty:
            return labels
        gain = squares
        if self.root:  # a centre with one leaf would be halfway between it and the root
            gain = gain - (self.weight[:-1] - self.root_row).square().sum(1) / 2
        labels = labels.clone()
        best = gain.argsort(descending=True)
        for leaf, old in zip(best[gain[best] > 0].tolist(), labels[best].tolist(), strict=False):
            if not empty:
                break
            if sizes[old] > 1:  # else the old centre would be empty
                sizes[old] -= 1
                labels[leaf] = empty.pop()
        return labels
