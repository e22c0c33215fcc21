"""ROBE: vectors are slices of one long array."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, TableOptions, Traits, table_options
from celrec.embeddings.hashing import hash_ids
from celrec.errors import CelrecError


class RobeEmbedding(Embedding):
    """Random offset block embedding: v(id)_i = weight[(h(id, c) + i mod z) mod length], c = ⌊i/z⌋.

    A vector consists of chunks of z = `chunk` values from one circular array of
    `rows` × `embedding_dim` values; a hash of id and chunk gives the start of the chunk. If z does
    not divide the dimension, the last chunk is shorter; if z is larger, there is one chunk. With
    `signs`, a second hash multiplies each chunk by 1 or −1, so that collisions cancel on average;
    such vectors cannot be non-negative. Unseen ids are hashed like any other.

    Desai et al., Random Offset Block Embedding (ROBE) for compressed embedding tables in
    deep learning recommendation systems, MLSys 2022.

    >>> table = RobeEmbedding(1000, 8, rows=10, chunk=4, seed=3)
    >>> table(torch.tensor([3, 999])).shape
    torch.Size([2, 8])
    >>> table.memory()
    Memory(table=320, index=0)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=True)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        chunk: int = 16,
        signs: bool = False,
        seed: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        padding_idx, device, dtype = table_options(**options)
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if chunk < 1:
            raise CelrecError(f"chunk must be positive, not {chunk}")
        length = rows * embedding_dim
        if length > 2**31:
            raise CelrecError(
                f"rows must be at most {2**31 // embedding_dim:,} of {embedding_dim} numbers "
                f"(offsets have 31 bits), not {rows:,}"
            )
        self.chunk, self.signs, self.seed = chunk, signs, seed
        self.weight = nn.Parameter(torch.empty(length, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)

    def places_of(self, ids: Tensor) -> Tensor:
        """The indices in `weight` of the values of each vector, along the last axis."""
        number = torch.arange(self.embedding_dim, device=ids.device)
        begin = self._of_chunks(ids, 0) % len(self.weight)
        begin = begin.repeat_interleave(self.chunk, -1)[..., : self.embedding_dim]
        return (begin + number % self.chunk) % len(self.weight)

    def vectors(self, ids: Tensor) -> Tensor:
        places = self.places_of(ids)
        vectors = self.weight.index_select(0, places.reshape(-1)).view(places.shape)
        if not self.signs:
            return vectors
        sign = 1 - 2 * (self._of_chunks(ids, 1) & 1)
        return vectors * sign.repeat_interleave(self.chunk, -1)[..., : self.embedding_dim]

    def _of_chunks(self, ids: Tensor, which: int) -> Tensor:
        """Hashes of id and chunk; the last axis runs over chunks."""
        chunks = torch.arange(-(-self.embedding_dim // self.chunk), device=ids.device)
        salt = hash_ids(2 * chunks + which, self.seed + 1)
        return hash_ids(hash_ids(ids, self.seed).unsqueeze(-1) ^ salt, self.seed)

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """The array; an error with `signs`."""
        if self.signs:
            raise CelrecError("signs must be False for non-negative vectors, not True")
        return [self.weight]

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids are hashed like all others."""
        self._grow_ids(num_embeddings)

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(self.weight.nbytes, 0)

    def extra_repr(self) -> str:
        signs = ", signs=True" if self.signs else ""
        return f"{super().extra_repr()}, chunk={self.chunk}{signs}"
