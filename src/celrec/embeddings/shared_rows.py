"""Embeddings in which every id has one row, perhaps the same as others."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding


class SharedRows(Embedding):
    """The vector of an id is one row of `weight`: weight[row_of(id)].

    Ids with equal rows predict alike, so their interactions can be summed up
    before training: see `training.collapse`.
    """

    weight: nn.Parameter

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """How many rows are in use; they are the first ones of `weight`."""

    @abstractmethod
    def row_of(self, ids: Tensor) -> Tensor:
        """The row of each id as int64, any shape, unseen ids included."""

    @property
    def plain(self) -> bool:
        """Whether vectors are rows just now, and to look them up does nothing else."""
        return self.padding_idx is None and not self.watches

    def rows_left(self, ids: Tensor) -> Tensor:
        """The rows of these and of unseen ids, ascending: those that `keep` leaves, in front."""
        left = torch.zeros(len(self.weight), dtype=torch.bool, device=self.weight.device)
        left[self.row_of(torch.cat([ids, ids.new_full((1,), -1)]))] = True
        return left.nonzero().squeeze(1)

    def vectors(self, ids: Tensor) -> Tensor:
        """The rows of `ids`."""
        rows = self.row_of(ids)
        # Gathers and, above all, adds up gradients faster than indexing does.
        flat = self.weight.index_select(0, rows.reshape(-1))
        return flat.view(*rows.shape, self.embedding_dim)
