"""The dot-product recommender: a table of users, a table of items."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.shared_rows import SharedRows

_CHUNK = 1 << 20


class Factorisation(nn.Module):
    """y = a_user · b_item, the rows of either side shared as their tables will.

    >>> from celrec.embeddings.full import FullEmbedding
    >>> model = Factorisation(FullEmbedding(3, 4), FullEmbedding(5, 4))
    >>> model(torch.tensor([0, 1]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    def __init__(self, users: SharedRows, items: SharedRows) -> None:
        super().__init__()
        self.users = users
        self.items = items

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """The prediction for each pair of ids."""
        a: Tensor = self.users(user)
        b: Tensor = self.items(item)
        return (a * b).sum(-1)

    @torch.no_grad()
    def predict(self, log: Interactions) -> Tensor:
        """The prediction for each row of a log, in bounded memory."""
        predicted = torch.empty(len(log))
        for start in range(0, len(log), _CHUNK):
            rows = slice(start, start + _CHUNK)
            user = torch.from_numpy(log.user[rows].astype(np.int64))
            item = torch.from_numpy(log.item[rows].astype(np.int64))
            predicted[rows] = self(user, item)
        return predicted

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, *, per_row: bool = False) -> None:
        """The paper's start for non-negative factors.

        A full table of |N(0, 1)| is divided by its largest value, or each row by its
        own; a cluster's row is the mean over its members.
        """
        for table in (self.users, self.items):
            full = torch.randn(table.num_embeddings, table.embedding_dim, generator=generator).abs()
            full /= full.amax(1, keepdim=True) if per_row else full.max()
            rows = table.row_of(torch.arange(table.num_embeddings))
            sums = torch.zeros_like(table.weight).index_add_(0, rows, full)
            sizes = torch.bincount(rows, minlength=len(sums)).clamp_(min=1)
            table.weight.copy_(sums / sizes[:, None])
            if not isinstance(table, ClusteredEmbedding):  # rows that no id has, for unseen ones
                unused = torch.bincount(rows, minlength=len(sums)) == 0
                table.weight[unused] = full.mean(0)
