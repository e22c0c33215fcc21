"""What mini-batches are drawn from: interactions, or sums over pairs of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.models.interaction import LOSSES
from celrec.offline.kernels import stable_order
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.runtime.communicator import Communicator, Partition


class Pairs:
    """The distinct pairs (row, column) that occur, by row and then by column.

    They are found by two counting sorts, in time linear in the interactions.

    >>> met = Pairs(np.array([1, 0, 1, 1]), np.array([2, 0, 0, 2]), 2, 3)
    >>> met.rows, met.columns, met.counts
    (array([0, 1, 1]), array([0, 0, 2]), array([1, 1, 2]))
    >>> met.first, met.number  # the first interaction of each, and which each interaction has
    (array([1, 2, 0]), array([2, 0, 1, 2]))
    """

    def __init__(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], num_rows: int, num_columns: int
    ) -> None:
        """The row and the column of each interaction, out of so many."""
        by_column = stable_order(columns, num_columns)
        order = by_column[stable_order(rows[by_column], num_rows)]
        ordered_rows, ordered_columns = rows[order], columns[order]
        new = np.ones(len(order), bool)
        new[1:] = np.diff(ordered_rows).astype(bool) | np.diff(ordered_columns).astype(bool)
        starts = np.flatnonzero(new)
        self.rows: NDArray[np.int64] = ordered_rows[starts]
        self.columns: NDArray[np.int64] = ordered_columns[starts]
        self.first: NDArray[np.int64] = order[starts]
        self.number = np.empty(len(order), np.int64)
        self.number[order] = np.cumsum(new) - 1
        self.counts: NDArray[np.int64] = np.diff(starts, append=len(order))


_LINEAR = ("squared-error", "cross-entropy")  # in the target, but for a constant


class Samples:
    """The interactions of a log, aggregated by pairs of rows where that is exact.

    If a model sees only the rows of a user and an item, all interactions of a pair of rows have
    one prediction. They become a weighted sample with their mean target: for squared error and
    cross-entropy its loss differs from theirs by a constant. Call `follow` after ids have changed
    their rows.
    """

    def __init__(
        self, recommender: Model, log: Interactions, *, make_pair_statistics: bool = True
    ) -> None:
        self._recommender, self._log = recommender, log
        self._collapses = make_pair_statistics and _collapsible(recommender)
        self._rows: tuple[Tensor, Tensor] | None = None
        self.first = np.arange(len(log))
        self._weight: Tensor | None = None
        self._target: Tensor | None = None
        self.constant = 0.0
        """What is missing of the loss, summed over all samples."""
        self.follow()

    def __len__(self) -> int:
        return len(self.first)

    def take(self, numbers: Tensor) -> Batch:
        """These samples."""
        rows = torch.from_numpy(self.first[numbers.numpy()])
        batch = self._recommender.batch(self._log, rows, own=True)
        if self._weight is None or self._target is None:
            return batch
        return batch._replace(target=self._target[numbers], weight=self._weight[numbers])

    def follow(self) -> None:
        """Take up the rows that ids have now."""
        if not self._collapses:
            return
        tables = self._recommender.row_tables.values()
        everyone = [table.row_of(torch.arange(table.num_embeddings)) for table in tables]
        if self._rows and all(map(torch.equal, everyone, self._rows)):
            return
        self._rows = everyone[0], everyone[1]
        users, items = (rows.numpy() for rows in everyone)
        log = self._log
        sizes = (int(rows.max(initial=0)) + 1 for rows in (users, items))
        pairs = Pairs(users[log.user], items[log.item], *sizes)
        self.first, counts = pairs.first, pairs.counts
        means = np.bincount(pairs.number, log.target, len(counts)) / counts
        self._weight = torch.from_numpy(counts.astype(np.float32))
        self._target = torch.from_numpy(means.astype(np.float32))
        if self._recommender.loss is LOSSES["squared-error"]:
            self.constant = float(np.square(log.target - means[pairs.number]).sum())


def _collapsible(recommender: Model) -> bool:
    """Whether the rows of a user and an item, and the user or item if alone in a row, are all."""
    tables = recommender.tables
    sides = (
        (tables["users"], recommender.user_features),
        (tables["items"], recommender.item_features),
    )
    return (
        recommender.loss in [LOSSES[name] for name in _LINEAR]
        and not recommender.history_length
        and not recommender.column_names
        # The gradients of single ids would be lost on those that look at them.
        and all(isinstance(t, SharedRows) and not t.needs_gradients for t, _ in sides)
        and all(isinstance(table, FullEmbedding) or not len(known) for table, known in sides)
    )


class BatchShard:
    """The samples of a mini-batch that are this rank's, or one of weight 0.

    So all ranks draw the same random numbers and have gradients of the same parameters.

    >>> from celrec.runtime.communicator import LOCAL
    >>> shard = BatchShard(Batch(torch.arange(3), torch.arange(3), torch.zeros(3)), LOCAL)
    >>> shard.batch.user, shard.weight, shard.whole_weight
    (tensor([0, 1, 2]), tensor([1., 1., 1.]), 3.0)
    """

    def __init__(self, whole: Batch, communicator: Communicator) -> None:
        self._whole = whole
        weight = torch.ones_like(whole.target) if whole.weight is None else whole.weight
        self.whole_weight = float(weight.sum())
        """The number of interactions that the whole batch stands for."""
        mine = Partition.even(len(whole.user), communicator).mine
        self._empty = mine.start == mine.stop
        self._places = slice(0, 1) if self._empty else mine
        self.batch = whole.at(self._places)
        self.weight = weight[self._places] * (not self._empty)
        """The number of interactions that each of these samples stands for."""

    def fraction(self, terms: Callable[[Batch], int]) -> float:
        """The fraction of this rank in the terms of a mean over the whole batch."""
        return 0.0 if self._empty else terms(self.batch) / max(terms(self._whole), 1)

    def normal(self, generator: torch.Generator, shape: torch.Size) -> Tensor:
        """Numbers from N(0, 1) for these samples, of those for the whole batch."""
        everywhere = torch.randn((len(self._whole.user), *shape[1:]), generator=generator)
        return everywhere[self._places]
