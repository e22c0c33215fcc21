"""The inputs of a model: samples as tensors, and features of users and items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from celrec.data.interactions import EncodedFeature, Interactions

HISTORY = "history"
"""The name of the vectors of a history, beside those of the tables."""


class Batch(NamedTuple):
    """Samples: ids, targets, and what else is known of each."""

    user: Tensor
    item: Tensor
    target: Tensor
    history: Tensor | None = None
    """(..., length): earlier items of the user, oldest first; negative in empty places."""
    weight: Tensor | None = None
    """How many interactions each sample stands for; one if None."""
    columns: Tensor | None = None
    """(..., columns): ids in further columns of the log."""
    worse: Tensor | None = None
    """A negative item, to be scored lower than `item`."""
    not_next: Tensor | None = None
    """(..., length): a negative item for each place of the history."""
    moment: Tensor | None = None
    """The number of each event in its stream."""

    @classmethod
    def pairs(cls, user: Tensor, item: Tensor) -> Batch:
        """Pairs of ids to be predicted, whose targets are not known."""
        return cls(user, item, torch.zeros(user.shape, device=user.device))

    @classmethod
    def of_log(
        cls, log: Interactions, columns: Sequence[str], history: NDArray[np.int32] | None
    ) -> Batch:
        """All rows of a log, with the ids in further columns, and the histories before them."""
        ids = [_as_ids(log.columns[name].values) for name in columns]
        return cls(
            _as_ids(log.user),
            _as_ids(log.item),
            torch.tensor(log.target),
            None if history is None else _as_ids(history),
            columns=torch.stack(ids, -1) if ids else None,
        )

    @classmethod
    def of(cls, ids: Sequence[Tensor], target: Tensor, moment: Tensor | None = None) -> Batch:
        """From the ids of users, items and further columns, in this order."""
        user, item, *columns = ids
        together = torch.stack(columns, -1) if columns else None
        return cls(user, item, target, columns=together, moment=moment)

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """The samples of several batches: ids, targets and moments."""
        ids = [torch.cat(several) for several in zip(*(b.ids() for b in batches), strict=True)]
        moments = [batch.moment for batch in batches if batch.moment is not None]
        target = torch.cat([batch.target for batch in batches])
        return cls.of(ids, target, torch.cat(moments) if moments else None)

    def at(self, places: Tensor | slice) -> Batch:
        """The samples at these places, or where a mask is true."""
        return Batch(*(None if value is None else value[places] for value in self))  # type: ignore[arg-type]

    def ids(self) -> list[Tensor]:
        """Those of users, items and further columns."""
        columns = () if self.columns is None else self.columns.unbind(-1)
        return [self.user, self.item, *columns]


def _as_ids(values: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


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
