"""Ids that share rows because they have the same binary code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.id_rows import narrowest
from celrec.errors import CelrecError

_CHUNK = 1 << 22  # distances at once


class HashCodeEmbedding(SharedRows):
    """A row for each of the `rows` most used codes; other codes have the row of the nearest.

    The codes come from a network that was trained before, as HashGNN's, and `set_codes`
    tells them. Nearest is by Hamming distance, ties go to the code that is used more. An
    unseen id shares the row of the most used code. Until there are codes, ids take the
    rows in turns.

    >>> table = HashCodeEmbedding(5, 2, rows=2)
    >>> bits = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]]).bool()
    >>> table.set_codes(bits, weights=torch.tensor([9.0, 5.0, 1.0, 1.0, 1.0]))
    >>> table.row_of(torch.arange(5)).tolist()
    [0, 1, 0, 1, 0]
    >>> table.memory()
    Memory(table=16, index=6)
    """

    traits = Traits(low_time=False, low_memory=False, incremental=False)  # because of the network
    row: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)
        row = torch.arange(num_embeddings + 1, device=device) % rows
        row[-1] = 0
        self.register_buffer("row", row.to(narrowest(rows)))

    @torch.no_grad()
    def set_codes(self, bits: Tensor, weights: Tensor) -> None:
        """Let ids share rows by their codes: a line of bits for each id, and how much it is used.

        The rows of the most used codes come first.
        """
        if bits.dtype != torch.bool or bits.shape[0] != self.num_embeddings or bits.ndim != 2:
            raise CelrecError(
                f"bits must have a line of booleans for each of {self.num_embeddings:,} ids, "
                f"not {bits.dtype} of shape {tuple(bits.shape)}"
            )
        codes, label = torch.unique(bits, dim=0, return_inverse=True)
        used = torch.zeros(len(codes), dtype=torch.float64)
        used.index_add_(0, label, weights.double())
        order = used.argsort(descending=True, stable=True)
        kept = codes[order[: len(self.weight)]].float() * 2 - 1
        place = torch.empty(len(codes), dtype=torch.int64)
        place[order[: len(kept)]] = torch.arange(len(kept))
        for others in torch.split(order[len(kept) :], max(1, _CHUNK // len(kept))):
            # The largest inner product of ±1 is the least distance; argmax takes the first.
            place[others] = ((codes[others].float() * 2 - 1) @ kept.T).argmax(1)
        self.row[:-1] = place[label].to(self.row)
        self.row[-1] = 0

    @property
    def num_rows(self) -> int:
        """All of them, those that no code has included."""
        return len(self.weight)

    def row_of(self, ids: Tensor) -> Tensor:
        """The row of each id's code."""
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return self.row[torch.where(seen, ids, self.num_embeddings)].long()

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        return {**super().settings(), "rows": len(self.weight)}

    def memory(self, *, training: bool = False) -> Memory:
        """The rows, and the row number of every id; what the network took is gone."""
        del training
        return Memory(self.weight.nbytes, self.row.nbytes)
