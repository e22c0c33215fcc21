"""Tables around another table: private offsets for some ids, and a bias per id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.id_rows import IdRows
from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget


class BiasedEmbedding(Embedding):
    """The vectors of another table with one more column, the last: a bias per id.

    Biases count as memory: four bytes for every id and for unseen ids, whose bias starts at 0.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> table = BiasedEmbedding(ClusteredEmbedding(5, 2, max_clusters=2))
    >>> table(torch.tensor([0, 4])).shape, table.embedding_dim
    (torch.Size([2, 3]), 3)
    >>> table.memory()
    Memory(table=32, index=6)
    """

    per_id = "bias"

    def __init__(self, rows: Embedding) -> None:
        super().__init__(rows.num_embeddings, rows.embedding_dim + 1, rows.padding_idx)
        self.rows, self.preparation_bytes = rows, rows.preparation_bytes
        like = next(rows.parameters())
        self.bias = nn.Parameter(like.new_zeros(rows.num_embeddings + 1))

    def vectors(self, ids: Tensor) -> Tensor:
        bias = self.bias[self._place(ids)]
        return torch.cat([self.rows.vectors(ids), bias.unsqueeze(-1)], -1)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """The traits of the inner table."""
        return self.rows.traits

    def adapt(self, optimizer: Optimizer | None = None) -> None:
        self.rows.adapt(optimizer)

    def penalty(self) -> Tensor | None:
        return self.rows.penalty()

    @contextmanager
    def as_served(self) -> Iterator[None]:
        with self.rows.as_served():
            yield

    def settled(self) -> Embedding:
        """The table itself, with its inner table settled."""
        self.rows = self.rows.settled()
        return self

    def non_negative_parameters(self) -> list[nn.Parameter]:
        return [*self.rows.non_negative_parameters(), self.bias]

    @property
    def observes_lookups(self) -> bool:
        return self.rows.observes_lookups

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows

    @property
    def overrun(self) -> float:
        """The overrun of the inner table, since its size is the one requested."""
        return self.rows.overrun

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids start with the bias of unseen ids."""
        self.rows.grow(num_embeddings)
        more = num_embeddings - self.num_embeddings
        self._grow_ids(num_embeddings)
        self.bias.data = torch.cat([self.bias, self.bias[-1:].expand(more)])

    def _fit(self, length: int) -> None:
        self.bias.data = self.bias.new_zeros(length)
        self.num_embeddings = length - 1

    def settings(self) -> dict[str, Any]:
        """Constructor arguments: the inner table."""
        return {"rows": self.rows}

    def memory(self, *, training: bool = False) -> Memory:
        rows = self.rows.memory(training=training)
        return Memory(rows.table + self.bias.nbytes, rows.index)


_NO_ROW = -1


class PersonalEmbedding(Embedding):
    """v = shared(id) + offset[own[id]] for ids with a private row, else shared(id).

    An id can get a private row at any time. It starts at 0, so the vector does not change at
    that moment. An id without a private row takes four bytes.

    >>> from celrec.embeddings.hashing import ModuloEmbedding
    >>> table = PersonalEmbedding(ModuloEmbedding(10, 2, rows=3))
    >>> before = table(torch.tensor([4, 5]))
    >>> table.give(torch.tensor([5]))
    >>> bool((table(torch.tensor([4, 5])) == before).all()), table.own_rows
    (True, 1)
    >>> table.memory()
    Memory(table=32, index=40)
    """

    own: Tensor
    """The private row of each id, −1 if it has none."""
    _given: Tensor

    def __init__(self, shared: Embedding, *, rows: int = 0) -> None:
        """Allocate `rows` private rows at first."""
        super().__init__(shared.num_embeddings, shared.embedding_dim, shared.padding_idx)
        if rows < 0:
            raise CelrecError(f"rows must not be negative, not {rows}")
        self.shared, self._places, self._own_rows = shared, IdRows(), IdRows()
        like = next(shared.parameters())
        self.offset = nn.Parameter(like.new_zeros(rows, shared.embedding_dim))
        own = torch.full((shared.num_embeddings,), _NO_ROW, dtype=torch.int32, device=like.device)
        self.register_buffer("own", own)
        self.register_buffer("_given", torch.tensor(0, device=like.device))

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """The traits of the shared table, except for memory: every id may get a private row."""
        return self.shared.traits._replace(low_memory=False)

    @property
    def own_rows(self) -> int:
        """The number of ids with a private row."""
        return int(self._given)

    @property
    def num_rows(self) -> int:
        return self.shared.num_rows + self.own_rows

    def own_of(self, ids: Tensor) -> Tensor:
        """The private row of each id, −1 if it has none."""
        if not self.num_embeddings:
            return torch.full_like(ids, _NO_ROW)
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return torch.where(seen, self.own[torch.where(seen, ids, 0)].long(), _NO_ROW)

    def offsets(self, ids: Tensor) -> Tensor:
        """The private offset of each id, 0 if it has none."""
        own = self.own_of(ids)
        if not len(self.offset):
            return self.offset.new_zeros(*ids.shape, self.embedding_dim)
        return torch.where((own >= 0).unsqueeze(-1), self.offset[own.clamp(min=0)], 0.0)

    def vectors(self, ids: Tensor) -> Tensor:
        return self.shared.vectors(ids) + self.offsets(ids)

    @torch.no_grad()
    def give(self, ids: Tensor) -> None:
        """Give a private row to each of `ids` that has none; `ids` must not be unseen."""
        if bool(((ids < 0) | (ids >= self.num_embeddings)).any()):
            raise CelrecError(f"ids must lie in 0 … {self.num_embeddings - 1}; grow the table")
        new = torch.unique(ids[self.own[ids] == _NO_ROW])
        first, total = self.own_rows, self.own_rows + len(new)
        if total > len(self.offset):  # grow by at least one eighth
            capacity = max(total, len(self.offset) * 9 // 8)
            self.offset.data = self._own_rows.extended(self.offset.data, capacity, 0)
        self.own[new] = torch.arange(first, total, dtype=torch.int32, device=self.own.device)
        self._given.fill_(total)

    def use_budget(self, budget: MemoryBudget) -> None:
        self.shared.use_budget(budget)
        self._places, self._own_rows = IdRows(budget), IdRows(budget)
        self.own = self._places.place(self.own)
        self.offset.data = self._own_rows.place(self.offset.data)

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids have the shared vector."""
        self.shared.grow(num_embeddings)
        self.sync_growth()

    def keep(self, ids: Tensor) -> None:
        """Remove all ids but these, given in ascending order, and renumber them from 0.

        Private rows of removed ids are freed.
        """
        self.shared.keep(ids)
        self.sync_kept(ids)

    @torch.no_grad()
    def sync_kept(self, ids: Tensor) -> None:
        """Keep only these ids here, after the shared table has kept only them."""
        rows = self.kept_rows(ids)
        own = self.own[ids]
        own[own != _NO_ROW] = torch.arange(len(rows), dtype=own.dtype, device=own.device)
        self._keep_ids(ids)
        self.own, self.offset.data = own, self._own_rows.place(self.offset[rows])
        self._given.fill_(len(rows))
        self.sync_growth()

    def kept_rows(self, ids: Tensor) -> Tensor:
        """The private rows of `ids`, in the order of the ids."""
        own = self.own[ids].long()
        return own[own != _NO_ROW]

    def sync_growth(self) -> None:
        """Take over the number of ids of the shared table, after it has grown."""
        self._grow_ids(self.shared.num_embeddings)
        self.own = self._places.extended(self.own, self.num_embeddings, _NO_ROW)

    def settings(self) -> dict[str, Any]:
        return {"shared": self.shared, "rows": len(self.offset)}

    def memory(self, *, training: bool = False) -> Memory:
        """The shared table, the private rows in use, and four bytes per id."""
        shared, rows = self.shared.memory(training=training), self.own_rows
        table = rows * self.embedding_dim * self.offset.element_size()
        index = self.own.nbytes
        if training:
            table, index = self.offset.nbytes, index + self._given.nbytes
        return Memory(shared.table + table, shared.index + index)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The saved table may have more ids and more rows.
        own, offset = (state_dict.get(f"{prefix}{name}") for name in ("own", "offset"))
        if own is not None and offset is not None:
            self.own = self._places.zeros(self.own, len(own))
            self.num_embeddings = len(own)
            self.offset.data = self._own_rows.zeros(self.offset.data, len(offset))
        super()._load_from_state_dict(state_dict, prefix, *rest)
