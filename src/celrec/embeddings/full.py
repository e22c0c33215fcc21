"""The full table: one row per id."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.id_rows import IdRows
from celrec.runtime.memory_budget import MemoryBudget


class FullEmbedding(SharedRows):
    """One row per id, and one more row for all unseen ids.

    >>> table = FullEmbedding(10, 4)
    >>> table(torch.tensor([3, -1])).shape
    torch.Size([2, 4])
    >>> table.memory()
    Memory(table=176, index=0)
    """

    traits = Traits(low_time=True, low_memory=False, incremental=True)
    per_id = "weight"

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
        """Initialise rows from N(0, 1/dim); the row of unseen ids is their mean."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        self.weight[-1] = self.weight[:-1].mean(0)

    @property
    def num_rows(self) -> int:
        return self.num_embeddings + 1

    def row_of(self, ids: Tensor) -> Tensor:
        """The id itself, or the last row for unseen ids."""
        return self._place(ids).long()

    def use_budget(self, budget: MemoryBudget) -> None:
        self._ids = IdRows(budget)
        self.weight.data = self._ids.place(self.weight.data)

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids start with a copy of the row of unseen ids.

        The parameter object stays the same, but the caller must resize its optimiser state.
        """
        self._grow_ids(num_embeddings)
        self.weight.data = self._ids.extended(
            self.weight.data, num_embeddings + 1, self.weight.data[-1]
        )

    @torch.no_grad()
    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these, given in ascending order, and renumber them from 0.

        The caller must select `kept_rows` of the optimiser state too.
        """
        rows = self.kept_rows(ids)
        self._keep_ids(ids)
        self.weight.data = self._ids.selected(self.weight.data, rows)
        self.grow(max(len(ids), 1))

    def _fit(self, length: int) -> None:
        self.weight.data = self._ids.zeros(self.weight.data, length)
        self.num_embeddings = length - 1

    def memory(self, *, training: bool = False) -> Memory:
        """The rows; there is no index, since an id is its own row."""
        return Memory(self.weight.nbytes, 0)
