"""Shared rows for most ids, private rows for some."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.id_rows import narrowest_dtype
from celrec.errors import CelrecError


class MixedEmbedding(SharedRows):
    """Ids share the first `shared_rows` rows; each other row is private to one id.

    `personalise` makes such a table from one with shared rows: each warm id gets a private copy
    of its row, and shared rows without remaining ids are dropped. The table then has one row per
    warm id and the rows that cold and unseen ids share.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> shared = ClusteredEmbedding(5, 2, max_clusters=2)
    >>> table = MixedEmbedding.personalise(shared, torch.tensor([True, False, False, True, False]))
    >>> table.shared_rows, table.private_rows
    (1, 2)
    >>> table.private(torch.tensor([0, 1, 7])).tolist()
    [True, False, False]
    >>> bool((table(torch.arange(5)) == shared(torch.arange(5))).all())
    True
    >>> table.memory()
    Memory(table=24, index=6)
    """

    traits = Traits(low_time=False, low_memory=True, incremental=True)
    per_id = "row"

    row: Tensor
    """The row of every id; the last entry is the row of unseen ids."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        shared_rows: int,
        private_rows: int,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        if shared_rows < 1:  # unseen ids need one
            raise CelrecError(f"shared_rows must be positive, not {shared_rows}")
        if not 0 <= private_rows <= num_embeddings:
            raise CelrecError(
                f"private_rows must lie in 0 … {num_embeddings:,} (the ids), not {private_rows}"
            )
        self.shared_rows, self.private_rows = shared_rows, private_rows
        rows = shared_rows + private_rows
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)
        ids = torch.arange(num_embeddings + 1, device=device)
        # By default the first ids have the private rows.
        own = shared_rows + ids
        row = torch.where(own < rows, own, ids % shared_rows).to(narrowest_dtype(rows))
        row[-1] = 0
        self.register_buffer("row", row)

    @classmethod
    @torch.no_grad()
    def personalise(cls, table: SharedRows, warm: Tensor) -> MixedEmbedding:
        """A table with the vectors of `table`, and a private row for each id in the mask `warm`.

        Unseen ids have the row that `table` gives to −1.
        """
        if warm.dtype != torch.bool or warm.shape != (table.num_embeddings,):
            raise CelrecError(
                f"warm must be a mask over all {table.num_embeddings:,} ids, "
                f"not {warm.dtype} of shape {tuple(warm.shape)}"
            )
        unseen = torch.tensor([-1], device=warm.device)
        old = table.row_of(torch.cat([torch.arange(len(warm), device=warm.device), unseen]))
        sharing = torch.cat([~warm, unseen < 0])
        kept, place = torch.unique(old[sharing], return_inverse=True)
        mixed = cls(
            table.num_embeddings,
            table.embedding_dim,
            shared_rows=len(kept),
            private_rows=int(warm.sum()),
            padding_idx=table.padding_idx,
            device=table.weight.device,
            dtype=table.weight.dtype,
        )
        mixed.row[sharing] = place.to(mixed.row.dtype)
        own = torch.arange(len(kept), mixed.num_rows, device=warm.device)
        mixed.row[~sharing] = own.to(mixed.row.dtype)
        mixed.weight[: len(kept)] = table.weight[kept]
        mixed.weight[len(kept) :] = table.weight[old[~sharing]]
        return mixed

    @property
    def num_rows(self) -> int:
        return self.shared_rows + self.private_rows

    def row_of(self, ids: Tensor) -> Tensor:
        return self.row[self._place(ids)].long()

    def private(self, ids: Tensor) -> Tensor:
        """Which of `ids` have a private row."""
        return self.row_of(ids) >= self.shared_rows

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids share the row of unseen ids."""
        before = self.num_embeddings
        self._grow_ids(num_embeddings)
        self.row = torch.cat([self.row, self.row[-1:].expand(num_embeddings - before)])

    def _fit(self, length: int) -> None:
        self.row = self.row.new_zeros(length)
        self.num_embeddings = length - 1

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(self.weight.nbytes, self.row.nbytes)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, shared={self.shared_rows}, private={self.private_rows}"
