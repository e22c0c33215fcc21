"""A bias per id next to the vectors of another table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Embedding, Memory, Traits


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
