"""A row of its own for every id."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.id_rows import IdRows
from celrec.runtime.memory_budget import MemoryBudget


class FullEmbedding(SharedRows):
    """The plain table, with one more row that all unseen ids share.

    >>> table = FullEmbedding(10, 4)
    >>> table(torch.tensor([3, -1])).shape
    torch.Size([2, 4])
    >>> table.memory()
    Memory(table=176, index=0)
    """

    traits = Traits(low_time=True, low_memory=False, incremental=True)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        rows = torch.empty(num_embeddings + 1, embedding_dim, device=device, dtype=dtype)
        self.weight, self._ids = nn.Parameter(rows), IdRows()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Rows from N(0, 1/dim), the one of unseen ids their mean."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        self.weight[-1] = self.weight[:-1].mean(0)

    @property
    def num_rows(self) -> int:
        """All of them."""
        return self.num_embeddings + 1

    def row_of(self, ids: Tensor) -> Tensor:
        """The id itself, the last row for unseen ones."""
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return torch.where(seen, ids, self.num_embeddings).long()

    def use_budget(self, budget: MemoryBudget) -> None:
        """See `Embedding`."""
        self._ids = IdRows(budget)
        self.weight.data = self._ids.moved_in(self.weight.data)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """New ids begin with a copy of the row that they shared while they were unseen.

        The parameter stays the same one, but an optimiser's state about it has to be made anew.
        """
        self._grown(num_embeddings)
        self.weight.data = self._ids.grown(
            self.weight.data, num_embeddings + 1, self.weight.data[-1]
        )

    @torch.no_grad()
    def keep(self, ids: Tensor) -> None:
        """See `Embedding`. An optimiser's state about the rows has to follow: see `rows_left`."""
        rows = self.rows_left(ids)
        self._kept(ids)
        self.weight.data = self._ids.kept(self.weight.data, rows)
        self.grow(max(len(ids), 1))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A saved table may have grown: its number of ids is that of the saved rows.
        saved = state_dict.get(f"{prefix}weight")
        if saved is not None and len(saved) != len(self.weight):
            self.weight.data = self._ids.emptied(self.weight.data, len(saved))
            self.num_embeddings = len(saved) - 1
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def memory(self, *, training: bool = False) -> Memory:
        """No index: an id is its own row."""
        del training
        return Memory(self.weight.nbytes, 0)
