"""The hashing trick."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.hashing import hash_ids


class ModuloEmbedding(SharedRows):
    """Ids share rows at random: the row of an id is hash(id) mod rows.

    The hash is seeded and mixes the bits, since dense ids are ordered by first appearance and
    are not random themselves. Only the rows are stored. An unseen id is hashed like any other.

    >>> table = ModuloEmbedding(1000, 4, rows=10, seed=3)
    >>> table.memory()
    Memory(table=160, index=0)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=True)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        seed: int = 0,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        self.seed = seed
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)

    @property
    def num_rows(self) -> int:
        return len(self.weight)

    def row_of(self, ids: Tensor) -> Tensor:
        return hash_ids(ids, self.seed) % len(self.weight)

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids are hashed like all others."""
        self._grow_ids(num_embeddings)

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(self.weight.nbytes, 0)
