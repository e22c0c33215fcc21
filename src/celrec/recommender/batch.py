"""Samples to train on or to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

HISTORY = "history"
"""The name of the vectors of a history, beside those of the tables."""


class Batch(NamedTuple):
    """Some interactions, and what their users did before."""

    user: Tensor
    item: Tensor
    target: Tensor
    history: Tensor | None = None
    """(..., length): the items before, oldest first, negative where there was none."""
    weight: Tensor | None = None
    """How many interactions a sample stands for; one if None."""
    columns: Tensor | None = None
    """(..., columns): the ids in further columns of the log."""
    worse: Tensor | None = None
    """An item that is to score lower than `item`."""
    not_next: Tensor | None = None
    """(..., length): for each item of the history one that did not come there."""
    moment: Tensor | None = None
    """The number of each event in its stream."""

    @classmethod
    def pairs(cls, user: Tensor, item: Tensor) -> Batch:
        """Pairs of ids to be predicted, whose targets are not known."""
        return cls(user, item, torch.zeros(user.shape, device=user.device))

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
