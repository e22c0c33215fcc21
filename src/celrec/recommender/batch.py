"""Samples to train on or to predict, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.interactions import Interactions

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
