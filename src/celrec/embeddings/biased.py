"""Shared rows with a scalar of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.embeddings.embedding import Embedding, Memory, Traits


class BiasedEmbedding(Embedding):
    """The vectors of another table, with a bias of each id's own as one more column, the last.

    A bias is a table too, and is counted: four bytes for every id, and for
    unseen ones, whose bias is 0 unless something else is learned.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> table = BiasedEmbedding(ClusteredEmbedding(5, 2, max_clusters=2))
    >>> table(torch.tensor([0, 4])).shape, table.embedding_dim
    (torch.Size([2, 3]), 3)
    >>> table.memory()
    Memory(table=32, index=6)
    """

    def __init__(self, rows: Embedding) -> None:
        super().__init__(rows.num_embeddings, rows.embedding_dim + 1, rows.padding_idx)
        self.rows, self.prepared_with = rows, rows.prepared_with
        like = next(rows.parameters())
        self.bias = nn.Parameter(like.new_zeros(rows.num_embeddings + 1))

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`, and their biases."""
        seen = (ids >= 0) & (ids < self.num_embeddings)
        bias = self.bias[torch.where(seen, ids, self.num_embeddings)]
        return torch.cat([self.rows.vectors(ids), bias.unsqueeze(-1)], -1)

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        """Those of the rows, which biases do not change."""
        return self.rows.traits

    def adapt(self, optimizer: Optimizer | None = None) -> None:
        """As the rows have it."""
        self.rows.adapt(optimizer)

    def penalty(self) -> Tensor | None:
        """As the rows have it."""
        return self.rows.penalty()

    @contextmanager
    def as_served(self) -> Iterator[None]:
        """As the rows have it."""
        with self.rows.as_served():
            yield

    def settled(self) -> Embedding:
        """With what is left of the rows."""
        self.rows = self.rows.settled()
        return self

    def non_negative_parameters(self) -> list[nn.Parameter]:
        """Those of the rows, and the biases."""
        return [*self.rows.non_negative_parameters(), self.bias]

    @property
    def watches(self) -> bool:
        """As the rows have it."""
        return self.rows.watches

    @property
    def num_rows(self) -> int:
        """Those of the rows."""
        return self.rows.num_rows

    @property
    def overrun(self) -> float:
        """That of the rows: nobody asks for biases by the row."""
        return self.rows.overrun

    @torch.no_grad()
    def grow(self, num_embeddings: int) -> None:
        """New ids begin with the bias of unseen ones."""
        self.rows.grow(num_embeddings)
        more = num_embeddings - self.num_embeddings
        self._grown(num_embeddings)
        self.bias.data = torch.cat([self.bias, self.bias[-1:].expand(more)])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A saved table may have grown: its number of ids is that of the saved biases.
        saved = state_dict.get(f"{prefix}bias")
        if saved is not None and len(saved) != len(self.bias):
            self.bias.data = self.bias.new_zeros(len(saved))
            self.num_embeddings = len(saved) - 1
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def settings(self) -> dict[str, Any]:
        """The table that it is made from."""
        return {"rows": self.rows}

    def memory(self, *, training: bool = False) -> Memory:
        """Of the rows, and of the biases."""
        rows = self.rows.memory(training=training)
        return Memory(rows.table + self.bias.nbytes, rows.index)
