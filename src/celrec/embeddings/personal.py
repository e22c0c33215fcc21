"""Shared vectors, and for some ids what they differ from them by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.id_rows import IdRows
from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget

_NOBODY = -1


class PersonalEmbedding(Embedding):
    """v = shared(id) + offset[own[id]] for ids with a row of their own, else shared(id).

    A row of its own is given to an id at any time, and begins at 0: so nothing changes at
    that moment. Until then an id costs four bytes here.

    >>> from celrec.embeddings.modulo import ModuloEmbedding
    >>> table = PersonalEmbedding(ModuloEmbedding(10, 2, rows=3))
    >>> before = table(torch.tensor([4, 5]))
    >>> table.give(torch.tensor([5]))
    >>> bool((table(torch.tensor([4, 5])) == before).all()), table.own_rows
    (True, 1)
    >>> table.memory()
    Memory(table=32, index=40)
    """

    own: Tensor
    """The place of the row of each id, −1 for those that have none."""
    _given: Tensor

    def __init__(self, shared: Embedding, *, rows: int = 0) -> None:
        """With room for so many rows to begin with."""
        super().__init__(shared.num_embeddings, shared.embedding_dim, shared.padding_idx)
        if rows < 0:
            raise CelrecError(f"rows must not be negative, not {rows}")
        self.shared, self._places, self._own_rows = shared, IdRows(), IdRows()
        like = next(shared.parameters())
        self.offset = nn.Parameter(like.new_zeros(rows, shared.embedding_dim))
        own = torch.full((shared.num_embeddings,), _NOBODY, dtype=torch.int32, device=like.device)
        self.register_buffer("own", own)
        self.register_buffer("_given", torch.tensor(0, device=like.device))

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Those of what is shared, but for the memory: everybody may have a row in the end."""
        return self.shared.traits._replace(low_memory=False)

    @property
    def own_rows(self) -> int:
        """How many ids have a row of their own."""
        return int(self._given)

    @property
    def num_rows(self) -> int:
        """Shared and own ones."""
        return self.shared.num_rows + self.own_rows

    def own_of(self, ids: Tensor) -> Tensor:
        """The place of the row of each id, −1 for those without."""
        if not self.num_embeddings:
            return torch.full_like(ids, _NOBODY)
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return torch.where(seen, self.own[torch.where(seen, ids, 0)].long(), _NOBODY)

    def offsets(self, ids: Tensor) -> Tensor:
        """By how much each id differs from what it shares."""
        own = self.own_of(ids)
        if not len(self.offset):
            return self.offset.new_zeros(*ids.shape, self.embedding_dim)
        return torch.where((own >= 0).unsqueeze(-1), self.offset[own.clamp(min=0)], 0.0)

    def vectors(self, ids: Tensor) -> Tensor:
        """Shared vectors and offsets."""
        return self.shared.vectors(ids) + self.offsets(ids)

    @torch.no_grad()
    def give(self, ids: Tensor) -> None:
        """Let ids that are seen, and have none yet, have rows of their own."""
        if bool(((ids < 0) | (ids >= self.num_embeddings)).any()):
            raise CelrecError(f"ids must lie in 0 … {self.num_embeddings - 1}; grow the table")
        new = torch.unique(ids[self.own[ids] == _NOBODY])
        first, total = self.own_rows, self.own_rows + len(new)
        if total > len(self.offset):  # by an eighth at least
            budget = max(total, len(self.offset) * 9 // 8)
            self.offset.data = self._own_rows.grown(self.offset.data, budget, 0)
        self.own[new] = torch.arange(first, total, dtype=torch.int32, device=self.own.device)
        self._given.fill_(total)

    def use_budget(self, budget: MemoryBudget) -> None:
        """See `Embedding`."""
        self.shared.use_budget(budget)
        self._places, self._own_rows = IdRows(budget), IdRows(budget)
        self.own = self._places.moved_in(self.own)
        self.offset.data = self._own_rows.moved_in(self.offset.data)

    def grow(self, num_embeddings: int) -> None:
        """New ids have what is shared."""
        self.shared.grow(num_embeddings)
        self.follow()

    def keep(self, ids: Tensor) -> None:
        """See `Embedding`. Rows of those who are gone are given back; others move up."""
        self.shared.keep(ids)
        self.follow_kept(ids)

    @torch.no_grad()
    def follow_kept(self, ids: Tensor) -> None:
        """Take up that of what is shared only these are left."""
        rows = self.rows_left(ids)
        own = self.own[ids]
        own[own != _NOBODY] = torch.arange(len(rows), dtype=own.dtype, device=own.device)
        self._kept(ids)
        self.own, self.offset.data = own, self._own_rows.moved_in(self.offset[rows])
        self._given.fill_(len(rows))
        self.follow()

    def rows_left(self, ids: Tensor) -> Tensor:
        """The rows of their own that these have, in the order of the ids."""
        own = self.own[ids].long()
        return own[own != _NOBODY]

    def follow(self) -> None:
        """Take up that what is shared has grown."""
        self._grown(self.shared.num_embeddings)
        self.own = self._places.grown(self.own, self.num_embeddings, _NOBODY)

    def settings(self) -> dict[str, Any]:
        """See `Embedding`."""
        return {"shared": self.shared, "rows": len(self.offset)}

    def memory(self, *, training: bool = False) -> Memory:
        """What is shared, the rows that were given, and four bytes for each id."""
        shared, rows = self.shared.memory(training=training), self.own_rows
        table = rows * self.embedding_dim * self.offset.element_size()
        index = self.own.nbytes
        if training:
            table, index = self.offset.nbytes, index + self._given.nbytes
        return Memory(shared.table + table, shared.index + index)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A saved table may have grown, in ids and in rows.
        own, offset = (state_dict.get(f"{prefix}{name}") for name in ("own", "offset"))
        if own is not None and offset is not None:
            self.own = self._places.emptied(self.own, len(own))
            self.num_embeddings = len(own)
            self.offset.data = self._own_rows.emptied(self.offset.data, len(offset))
        super()._load_from_state_dict(state_dict, prefix, *rest)
