"""Ids with the same binary hash code share a row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.id_rows import narrowest_dtype
from celrec.errors import CelrecError

_BLOCK = 1 << 22  # distances computed at once


class HashCodeEmbedding(SharedRows):
    """One row for each of the `rows` most frequent codes; other codes use the nearest of these.

    `set_codes` takes the codes, from a network that was trained before, such as HashGNN.
    Distances are Hamming distances; ties go to the more frequent code. An unseen id has the row
    of the most frequent code. Before `set_codes`, the row of an id is id mod rows.

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
        self.register_buffer("row", row.to(narrowest_dtype(rows)))

    @torch.no_grad()
    def set_codes(self, bits: Tensor, weights: Tensor) -> None:
        """Assign ids to rows by their codes; rows are ordered by the frequency of the codes.

        Args:
            bits: The code of each id, (ids, code length), as booleans.
            weights: The frequency of each id.

        """
        if bits.dtype != torch.bool or bits.shape[0] != self.num_embeddings or bits.ndim != 2:
            raise CelrecError(
                f"bits must have a row of booleans for each of {self.num_embeddings:,} ids, "
                f"not {bits.dtype} of shape {tuple(bits.shape)}"
            )
        codes, label = torch.unique(bits, dim=0, return_inverse=True)
        used = torch.zeros(len(codes), dtype=torch.float64)
        used.index_add_(0, label, weights.double())
        order = used.argsort(descending=True, stable=True)
        kept = codes[order[: len(self.weight)]].float() * 2 - 1
        place = torch.empty(len(codes), dtype=torch.int64)
        place[order[: len(kept)]] = torch.arange(len(kept))
        for others in torch.split(order[len(kept) :], max(1, _BLOCK // len(kept))):
            # For codes of ±1 the largest inner product is the smallest Hamming distance.
            place[others] = ((codes[others].float() * 2 - 1) @ kept.T).argmax(1)
        self.row[:-1] = place[label].to(self.row)
        self.row[-1] = 0

    @property
    def num_rows(self) -> int:
        """All rows, also those that no code uses."""
        return len(self.weight)

    def row_of(self, ids: Tensor) -> Tensor:
        return self.row[self._place(ids)].long()

    def memory(self, *, training: bool = False) -> Memory:
        """The rows, and the row number of every id; the network is not needed any more."""
        return Memory(self.weight.nbytes, self.row.nbytes)
