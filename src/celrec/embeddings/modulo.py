"""The hashing trick."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.memory import Memory
from celrec.embeddings.shared_rows import SharedRows
from celrec.errors import CelrecError

_MASK = 0x7FFFFFFF


class ModuloEmbedding(SharedRows):
    """Ids share rows at random: the row of an id is hash(id) mod rows.

    The hash is a seeded mixture of multiplications and shifts, since dense ids
    are ordered by appearance and so not random themselves. Nothing is stored
    but the rows, and an unseen id is hashed like any other.

    >>> table = ModuloEmbedding(1000, 4, rows=10, seed=3)
    >>> table.memory()
    Memory(table=160, index=0)
    """

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
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        if rows < 1:
            raise CelrecError(f"rows must be positive, not {rows}")
        self.seed = seed
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)

    @property
    def num_rows(self) -> int:
        """All of them."""
        return len(self.weight)

    def row_of(self, ids: Tensor) -> Tensor:
        """hash(id) mod rows."""
        offset = 0x9E3779B1 * (self.seed + 1) & _MASK  # of any seed, however large
        mixed = ((ids.long() & _MASK) + offset) & _MASK
        for multiplier in (0x45D9F3B, 0x2C1B3C6D):
            mixed = ((mixed ^ (mixed >> 16)) * multiplier) & _MASK
        return (mixed ^ (mixed >> 16)) % len(self.weight)

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        return {**super().settings(), "rows": len(self.weight), "seed": self.seed}

    def memory(self, *, training: bool = False) -> Memory:
        """The rows alone."""
        del training
        return Memory(self.weight.nbytes, 0)
