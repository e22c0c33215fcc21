"""Vectors cut out of one long array."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.hashing import mixed
from celrec.errors import CelrecError


class RobeEmbedding(Embedding):
    """Random offset block embedding: v(id)_i = weight[(h(id, c) + i mod z) mod length], c = ⌊i/z⌋.

    All vectors are made of chunks of z = `chunk` numbers out of one circular array of
    `rows` × `embedding_dim` numbers; a hash of id and chunk says where the chunk
    begins. If z does not divide the dimension, the last chunk is shorter; if it is
    larger, there is one chunk. With `signs`, a second hash multiplies each chunk by 1
    or −1, so that what ids share cancels out on average; such vectors cannot be kept
    non-negative. Unseen ids are hashed like any other.

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
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if chunk < 1:
            raise CelrecError(f"chunk must be positive, not {chunk}")
        length = rows * embedding_dim
        if length > 2**31:
            raise CelrecError(
                f"rows must be at most {2**31 // embedding_dim:,} of {embedding_dim} numbers, "
                f"which is all that 31 bits can address, not {rows:,}"
            )
        self.chunk, self.signs, self.seed = chunk, signs, seed
        self.weight = nn.Parameter(torch.empty(length, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)

    def places_of(self, ids: Tensor) -> Tensor:
        """Where in `weight` each number of each vector lies: one more axis."""
        number = torch.arange(self.embedding_dim, device=ids.device)
        begin = self._of_chunks(ids, 0) % len(self.weight)
        begin = begin.repeat_interleave(self.chunk, -1)[..., : self.embedding_dim]
        return (begin + number % self.chunk) % len(self.weight)

    def vectors(self, ids: Tensor) -> Tensor:
        """The chunks of `ids`, one after the other."""
        places = self.places_of(ids)
        vectors = self.weight.index_select(0, places.reshape(-1)).view(places.shape)
        if not self.signs:
            return vectors
        sign = 1 - 2 * (self._of_chunks(ids, 1) & 1)
        return vectors * sign.repeat_interleave(self.chunk, -1)[..., : self.embedding_dim]

    def _of_chunks(self, ids: Tensor, which: int) -> Tensor:
        """A hash of id and chunk: one more axis."""
        chunks = torch.arange(-(-self.embedding_dim // self.chunk), device=ids.device)
        salt = mixed(2 * chunks + which, self.seed + 1)
        return mixed(mixed(ids, self.seed).unsqueeze(-1) ^ salt, self.seed)

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """The array; there are none if signs are random."""
        if self.signs:
            raise CelrecError("signs must be False for vectors that are not negative, not True")
        return [self.weight]

    def grow(self, num_embeddings: int) -> None:
        """Nothing but the number changes: new ids are hashed like all others."""
        self._grown(num_embeddings)

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        return {
            **super().settings(),
            "rows": self.rows_asked,
            "chunk": self.chunk,
            "signs": self.signs,
            "seed": self.seed,
        }

    def memory(self, *, training: bool = False) -> Memory:
        """The array alone."""
        del training
        return Memory(self.weight.nbytes, 0)

    def extra_repr(self) -> str:
        """See `nn.Module`."""
        signs = ", signs=True" if self.signs else ""
        return f"{super().extra_repr()}, chunk={self.chunk}{signs}"
