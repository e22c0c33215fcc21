"""Tables for categorical features of users and items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from celrec.data.features import EncodedFeature


class FeatureTables(nn.Module):
    """One vector per id and feature: the mean over the vectors of the id's values.

    Ids without a value, and unseen ids, have the vector 0.

    >>> genres = EncodedFeature("genres", np.array([[0, 1], [1, -1]], np.int32), size=2)
    >>> FeatureTables([genres], 8)(torch.tensor([0, 1, -1])).shape
    torch.Size([3, 1, 8])
    """

    def __init__(self, features: Sequence[EncodedFeature], dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.tables = nn.ParameterList(
            nn.init.normal_(torch.empty(feature.size, dim), std=0.05) for feature in features
        )
        for number, feature in enumerate(features):
            unseen = np.full((1, feature.values.shape[1]), -1, np.int32)
            values = torch.from_numpy(np.concatenate([feature.values, unseen]))
            self.register_buffer(f"values_{number}", values)

    def __len__(self) -> int:
        """How many features there are."""
        return len(self.tables)

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """For each feature: the numbers of values and of ids, and the most values of one id."""
        buffers = [getattr(self, f"values_{number}") for number in range(len(self))]
        return [
            (len(table), len(values) - 1, values.shape[1])
            for table, values in zip(self.tables, buffers, strict=True)
        ]

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors of `ids`, (..., features, dim)."""
        vectors = [self._pooled(n, table, ids) for n, table in enumerate(self.tables)]
        return torch.stack(vectors, -2) if vectors else self.no_vectors(ids)

    def no_vectors(self, ids: Tensor) -> Tensor:
        """The vectors of `ids` where there are no features, (..., 0, dim)."""
        return torch.zeros((*ids.shape, 0, self.dim), device=ids.device)

    def known(self, ids: Tensor) -> Tensor:
        """The numbers of the values of `ids`, (..., values), −1 in empty places.

        All features side by side: ids with equal numbers have equal vectors.
        """
        return torch.cat([self._values(number, ids) for number in range(len(self))], -1)

    def _values(self, number: int, ids: Tensor) -> Tensor:
        values: Tensor = getattr(self, f"values_{number}")
        last = len(values) - 1
        return values[torch.where((ids >= 0) & (ids < last), ids, last)].long()

    def _pooled(self, number: int, table: Tensor, ids: Tensor) -> Tensor:
        mine = self._values(number, ids)
        has = mine >= 0
        share = has.to(table) / has.sum(-1, keepdim=True).clamp(min=1)
        # Adds up gradients faster than indexing does.
        vectors = table.index_select(0, mine.clamp(min=0).view(-1)).view(*mine.shape, self.dim)
        return (vectors * share.unsqueeze(-1)).sum(-2)
