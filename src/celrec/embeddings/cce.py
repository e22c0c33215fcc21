"""Clustered compositional embeddings: sums of a cluster's row and a hashed row."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Embedding, Memory, TableOptions, Traits, table_options
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.id_rows import narrowest_dtype, reset_state
from celrec.embeddings.kmeans import k_means, nearest
from celrec.errors import CelrecError

SAMPLE = 64
"""Ids per centroid in the sample for k-means."""
_BITS = 2**31 - 1
BLOCK = 2**16
"""Ids whose vectors are computed at once."""


class CceEmbedding(Embedding):
    """Clustered compositional embeddings: each column is T₀[h₀(id)] + T₁[h₁(id)].

    A vector has `chunks` columns (default: 4, or the next smaller divisor of the dimension), each
    with its own T₀ and T₁ of half of the rows. At first h₀ and h₁ are random hashes. `recluster`
    replaces them: T₀ becomes the k-means centroids of the column, h₀ the nearest centroid, h₁
    a new random hash, and T₁ the mean residual of each bucket. `adapt` reclusters at every
    `every`-th call, `times` times in total; training should continue for a while afterwards.

    h₀ is stored for every id, h₁ is computed. The h₀ of an unseen id is a random hash.

    >>> table = CceEmbedding(1000, 8, rows=10)
    >>> table.chunks, table.clusters.shape, table.rest.shape
    (4, torch.Size([20, 2]), torch.Size([20, 2]))
    >>> table.recluster()
    >>> table.memory()
    Memory(table=320, index=4064)
    """

    traits = Traits(low_time=False, low_memory=True, incremental=True)
    per_id = "pointer"

    clusters: nn.Parameter
    """T₀: the rows of the first column, then those of the second, and so on."""
    rest: nn.Parameter
    """T₁, likewise."""
    pointer: Tensor
    """h₀ of every id in every column."""
    _shift: Tensor  # added to ids before hashing, for h₀ and h₁, per column
    _calls: Tensor
    _done: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        chunks: int | None = None,
        every: int = 10,
        times: int = 6,
        seed: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        padding_idx, device, dtype = table_options(**options)
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if chunks is None:
            chunks = next(c for c in (4, 3, 2, 1) if embedding_dim % c == 0)
        if chunks < 1 or embedding_dim % chunks:
            raise CelrecError(f"chunks must divide embedding_dim={embedding_dim}, not {chunks}")
        if every < 1 or times < 0:
            raise CelrecError(f"every must be positive and times not negative: {every}, {times}")
        self.chunks, self.every, self.times, self.seed = chunks, every, times, seed
        self._heights = (rows - rows // 2, max(1, rows // 2))
        self.clusters, self.rest = (
            nn.Parameter(
                torch.empty(chunks * height, embedding_dim // chunks, device=device, dtype=dtype)
            )
            for height in self._heights
        )
        for table in (self.clusters, self.rest):
            nn.init.normal_(table, std=(2 * embedding_dim) ** -0.5)  # the sum has variance 1/dim
        for name in ("_calls", "_done"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=device))
        shift = torch.stack([self._drawn(0), self._drawn(1)])
        self.register_buffer("_shift", shift.to(self.clusters.device))
        ids = torch.arange(num_embeddings, device=device)
        self.register_buffer("pointer", self._hashed(ids).to(narrowest_dtype(self._heights[0])))

    def vectors(self, ids: Tensor) -> Tensor:
        seen = (ids >= 0) & (ids < self.num_embeddings)
        stored = self.pointer[torch.where(seen, ids, 0)].long()
        cluster = torch.where(seen.unsqueeze(-1), stored, self._hashed(ids))
        bucket = self._hash(ids.unsqueeze(-1), self._shift[1], self._heights[1])
        column = torch.arange(self.chunks, device=ids.device)
        first = self.clusters.index_select(0, (cluster + column * self._heights[0]).reshape(-1))
        second = self.rest.index_select(0, (bucket + column * self._heights[1]).reshape(-1))
        return (first + second).view(*ids.shape, self.embedding_dim)

    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """Recluster at every `every`-th call, up to `times` times."""
        if int(self._done) >= self.times:
            return
        self._calls += 1
        if int(self._calls) % self.every == 0:
            self.recluster(optimizer)

    @torch.no_grad()
    def recluster(
        self, optimizer: Optimizer | None = None, *, non_negative: bool | None = None
    ) -> None:
        """Approximate the current vectors by new clusters and new hashed rows.

        The optimiser state of both tables is reset.

        Args:
            optimizer: The optimiser of the table.
            non_negative: Whether to keep parameters non-negative; None: if they are now.

        """
        self._done += 1
        generator = Generator(self.clusters.device)
        generator.manual_seed(int(hash_ids(self._done, self.seed)))
        if non_negative is None:
            non_negative = all(bool((table >= 0).all()) for table in self.parameters())
        for column in range(self.chunks):
            self._recluster(column, generator, non_negative=non_negative)
        for table in self.parameters():
            reset_state(optimizer, table)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids keep the hashes that they had as unseen ids."""
        before = self.num_embeddings
        self._grow_ids(num_embeddings)
        new = torch.arange(before, num_embeddings, device=self.pointer.device)
        self.pointer = torch.cat([self.pointer, self._hashed(new).to(self.pointer.dtype)])

    def memory(self, *, training: bool = False) -> Memory:
        """Both tables, the pointers and the hash seeds; while training also two counters."""
        counts = self._calls.nbytes + self._done.nbytes if training else 0
        index = self.pointer.nbytes + self._shift.nbytes + counts
        return Memory(self.clusters.nbytes + self.rest.nbytes, index)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, chunks={self.chunks}"

    def _recluster(self, column: int, generator: Generator, *, non_negative: bool) -> None:
        height, width = self._heights[1], self.rest.shape[1]
        centroids = k_means(
            self._column(self._sample(generator), column), self._heights[0], generator
        )
        shift = self._drawn(1 + int(self._done)).to(self._shift.device)[column]
        sums, sizes = centroids.new_zeros(height, width), centroids.new_zeros(height, 1)
        all_ids = torch.arange(self.num_embeddings, device=self.pointer.device)
        for ids in torch.split(all_ids, BLOCK):
            vectors = self._column(ids, column)
            cluster, _ = nearest(vectors, centroids)
            bucket = self._hash(ids, shift, height)
            sums.index_add_(0, bucket, vectors - centroids[cluster])
            sizes += torch.bincount(bucket, minlength=height).unsqueeze(1)
            self.pointer[ids, column] = cluster.to(self.pointer.dtype)
        rest = sums / sizes.clamp(min=1)  # 0 in an empty bucket
        if non_negative:
            # Move a constant from the centroids to the residuals; sums stay the same.
            lift = torch.minimum(-rest.amin(0).clamp(max=0), centroids.amin(0))
            centroids, rest = centroids - lift, (rest + lift).clamp(min=0)
        for table, new in ((self.clusters, centroids), (self.rest, rest)):
            table[column * len(new) : (column + 1) * len(new)] = new.to(table.dtype)
        self._shift[1, column] = shift

    def _sample(self, generator: Generator) -> Tensor:
        device, size = self.pointer.device, SAMPLE * self._heights[0]
        if size >= self.num_embeddings:
            return torch.arange(self.num_embeddings, device=device)
        return torch.randint(self.num_embeddings, (size,), generator=generator, device=device)

    def _column(self, ids: Tensor, column: int) -> Tensor:
        """One column of the vectors of many ids, in at least single precision."""
        kind = torch.promote_types(self.rest.dtype, torch.float32)
        width = self.rest.shape[1]
        found = [
            self.vectors(part)[:, column * width :][:, :width] for part in torch.split(ids, BLOCK)
        ]
        return torch.cat(found).to(kind)

    def _drawn(self, draw: int) -> Tensor:
        return hash_ids(torch.arange(self.chunks) + draw * self.chunks, self.seed + 1)

    def _hashed(self, ids: Tensor) -> Tensor:
        """The random h₀ of ids that were not clustered."""
        return self._hash(ids.unsqueeze(-1), self._shift[0], self._heights[0])

    def _hash(self, ids: Tensor, shift: Tensor, height: int) -> Tensor:
        return hash_ids((ids & _BITS) + shift, self.seed) % height

    def _fit(self, length: int) -> None:
        if length > len(self.pointer):
            self.grow(length)
