"""What mini-batches are taken from: interactions, or pairs of rows where that is the same."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from celrec.data.interactions import Interactions
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.training.batch import Batch
from celrec.training.id_model import IdModel
from celrec.training.losses import LOSSES
from celrec.training.pairs import Pairs

_LINEAR = ("squared-error", "cross-entropy")  # in the target, but for a constant


class Samples:
    """The interactions of a log, collapsed while that is exact.

    Where a recommender sees of a user and an item nothing but their rows, all
    interactions of a pair of rows predict alike. They become one sample that
    counts so many times, with their mean target: for squared error and
    cross-entropy its weighted loss differs from the sum of theirs by a constant.

    `follow` must be called after ids have changed their rows.
    """

    def __init__(self, recommender: IdModel, log: Interactions, *, collapse: bool = True) -> None:
        self._recommender, self._log = recommender, log
        self._collapses = collapse and _collapsible(recommender)
        self._rows: tuple[Tensor, Tensor] | None = None
        self._first = np.arange(len(log))
        self._weight: Tensor | None = None
        self._target: Tensor | None = None
        self.constant = 0.0
        """What is missing of the loss, summed over all samples."""
        self.follow()

    def __len__(self) -> int:
        return len(self._first)

    def take(self, numbers: Tensor) -> Batch:
        """These samples."""
        rows = torch.from_numpy(self._first[numbers.numpy()])
        batch = self._recommender.batch(self._log, rows, own=True)
        if self._weight is None or self._target is None:
            return batch
        return batch._replace(target=self._target[numbers], weight=self._weight[numbers])

    def follow(self) -> None:
        """Take up the rows that ids have now."""
        if not self._collapses:
            return
        tables = self._recommender.user_rows, self._recommender.item_rows
        everyone = [
            table.row_of(torch.arange(table.num_embeddings))
            for table in tables
            if isinstance(table, SharedRows)
        ]
        if self._rows and all(map(torch.equal, everyone, self._rows)):
            return
        self._rows = everyone[0], everyone[1]
        users, items = (rows.numpy() for rows in everyone)
        log = self._log
        sizes = (int(rows.max(initial=0)) + 1 for rows in (users, items))
        pairs = Pairs(users[log.user], items[log.item], *sizes)
        self._first, counts = pairs.first, pairs.counts
        means = np.bincount(pairs.number, log.target, len(counts)) / counts
        self._weight = torch.from_numpy(counts.astype(np.float32))
        self._target = torch.from_numpy(means.astype(np.float32))
        if self._recommender.loss is LOSSES["squared-error"]:
            self.constant = float(np.square(log.target - means[pairs.number]).sum())


def _collapsible(recommender: IdModel) -> bool:
    """Whether the rows of a user and an item, and the user or item if alone in a row, are all."""
    sides = (
        (recommender.user_rows, recommender.user_features),
        (recommender.item_rows, recommender.item_features),
    )
    return (
        recommender.loss in [LOSSES[name] for name in _LINEAR]
        and not recommender.history_length
        and not recommender.column_names
        # The gradients of single ids would be lost on those that look at them.
        and all(isinstance(t, SharedRows) and not t.needs_gradients for t, _ in sides)
        and all(isinstance(table, FullEmbedding) or not len(known) for table, known in sides)
    )
