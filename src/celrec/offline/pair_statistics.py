"""The exact collapse: interactions of rows that predict alike, summed up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.id_map import UNSEEN
from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.offline.kernels import column_slopes, normal_equations, row_errors, stable_order
from celrec.offline.samples import Pairs
from celrec.runtime.communicator import LOCAL, WHOLE, Communicator


class PairStatistics(ABC):
    """The squared error of a dot product, and its slopes, from sums over pairs of rows.

    All interactions of a pair of rows (r, k) have the prediction p = a_r·b_k. With their number n
    and the sum s of their targets,

        Σ (p − x)² = n·p² − 2·s·p + Σ x²,

    so a step needs no pass over the interactions. Without shared rows, each pair is an
    interaction, and the sums are one fused pass. Sums are over all ranks.
    """

    def __init__(
        self,
        log: Interactions,
        users: SharedRows,
        items: SharedRows,
        user_range: slice = WHOLE.mine,
        communicator: Communicator = LOCAL,
    ) -> None:
        """`user_range` are the rows of users that this rank may have interactions of."""
        self._users, self._items, self._communicator = users, items, communicator
        self._here = user_range
        self._log = log
        self._user_rows = self._item_rows = np.empty(0, np.int64)
        self._targets = log.target
        self._summed = False
        self.squares = self._square_sum()
        """Σ x²."""

    def retarget(self, targets: NDArray[np.float32]) -> None:
        """Let the interactions have other targets, in the order of the log."""
        self._targets, self._summed = targets, False
        self.squares = self._square_sum()

    def loss(self) -> float:
        """L = Σ (a·b − x)²."""
        return self._loss(self._evaluated()[0])

    def loss_and_slopes(self) -> tuple[float, Tensor, Tensor]:
        """L, ∂L/∂a and ∂L/∂b for the rows in use."""
        rest, user_slopes, item_slopes = self._evaluated()
        total = self._communicator.all_reduce
        return self._loss(rest), total(user_slopes), total(item_slopes)

    def _evaluated(self) -> tuple[float, Tensor, Tensor]:
        self._follow_assignments()
        return self._evaluate(
            self._users.weight.data[: self._users.num_rows],
            self._items.weight.data[: self._items.num_rows],
        )

    def _loss(self, rest: float) -> float:
        # By rounding, a perfect fit may seem a little better than perfect.
        return max(self.squares + self._communicator.all_reduce(rest), 0.0)

    def curvature_bounds(self) -> tuple[Tensor, Tensor]:
        """Upper bounds of the curvature of L along each row: 2·Σ n·‖b‖² and 2·Σ n·‖a‖².

        They are the traces of the rows' Hessians, at least the largest eigenvalue.
        """
        self._follow_assignments()
        a = self._users.weight.data[: self._users.num_rows].square().sum(1)
        b = self._items.weight.data[: self._items.num_rows].square().sum(1)
        users, items = map(self._communicator.all_reduce, self._weighted_sums(a, b))
        return 2 * users, 2 * items

    def owned(self, side: str) -> bool:
        """Whether one rank has all interactions of a row of this side."""
        return side == "users" and isinstance(self._users, FullEmbedding)

    def normal_equations(self, side: str, moments: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Σ n·M and Σ s·row for some rows of one side.

        M is the moment (row·rowᵀ, perhaps plus a covariance) and row the row of each pair's
        partner; s is the pair's sum of targets. They are the matrix and the right side of the
        least squares problem of a row of `side`. For `owned` rows, of this rank's interactions.
        """
        self._follow_assignments()
        other = self._users if side == "items" else self._items
        weight = other.weight.data[: other.num_rows]
        # Moments are symmetric: half of each is enough to read, which is what takes the time.
        lower, place = _halves(moments.shape[1])
        halves = moments.flatten(1).index_select(1, lower)  # much faster than [:, lower]
        matrices, right = self._equations(side, halves, weight, rows)
        if not self.owned(side):
            matrices, right = (
                self._communicator.all_reduce(matrices),
                self._communicator.all_reduce(right),
            )
        return matrices.index_select(1, place).view(-1, *moments.shape[1:]), right

    def _follow_assignments(self) -> None:
        user_rows, item_rows = _rows_of(self._users), _rows_of(self._items)
        if not (
            np.array_equal(user_rows, self._user_rows)
            and np.array_equal(item_rows, self._item_rows)
        ):
            self._build(user_rows[self._log.user], item_rows[self._log.item])
            self._user_rows, self._item_rows, self._summed = user_rows, item_rows, False
        if not self._summed:
            self._sum(self._targets)
            self._summed = True

    def _square_sum(self) -> float:
        return self._communicator.all_reduce(
            float(np.square(self._targets, dtype=np.float64).sum())
        )

    @abstractmethod
    def _build(self, user_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> None:
        """Find the pairs anew, given the rows of each interaction."""

    @abstractmethod
    def _sum(self, targets: NDArray[np.float32]) -> None:
        """Sum up the targets of each pair."""

    @abstractmethod
    def _equations(
        self, side: str, moments: Tensor, weight: Tensor, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Σ n·moment and Σ s·row over the partners of these rows; moments are lists of numbers."""

    @abstractmethod
    def _evaluate(self, a: Tensor, b: Tensor) -> tuple[float, Tensor, Tensor]:
        """L without Σ x², and the slopes."""

    @abstractmethod
    def _weighted_sums(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Σ n·b over the pairs of each user row and Σ n·a over those of each item row."""


def _rows_of(table: SharedRows) -> NDArray[np.int64]:
    # UNSEEN is −1, which finds the last place.
    ids = torch.cat([torch.arange(table.num_embeddings), torch.tensor([UNSEEN])])
    rows: NDArray[np.int64] = table.row_of(ids).numpy()
    return rows


def make_pair_statistics(
    log: Interactions,
    users: SharedRows,
    items: SharedRows,
    user_range: slice = WHOLE.mine,
    communicator: Communicator = LOCAL,
) -> PairStatistics:
    """The form that fits: matrices of all pairs of rows, or a list of those that occur."""
    rows = len(range(*user_range.indices(users.weight.shape[0])))
    dense = rows * items.weight.shape[0] <= 4 * len(log)
    return (DensePairStatistics if dense else SparsePairStatistics)(
        log, users, items, user_range, communicator
    )


class DensePairStatistics(PairStatistics):
    """Matrices of counts W and sums X: with P = A·Bᵀ and E = W∘P − X, slopes 2·E·B and 2·Eᵀ·A."""

    def _build(self, user_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> None:
        first, last, _ = self._here.indices(self._users.num_rows)
        self._first, self._shape = first, (last - first, self._items.num_rows)
        self._cells = (user_rows - first) * self._shape[1] + item_rows
        # float32 would stop counting at 2²⁴, which one cell can have while clusters are few.
        self._counts = self._matrix(np.ones(len(user_rows)))

    def _sum(self, targets: NDArray[np.float32]) -> None:
        self._sums = self._matrix(targets)

    def _matrix(self, weights: NDArray[np.floating]) -> Tensor:
        cells = np.bincount(self._cells, weights, self._shape[0] * self._shape[1])
        return torch.from_numpy(cells.astype(np.float32)).view(self._shape)

    def _evaluate(self, a: Tensor, b: Tensor) -> tuple[float, Tensor, Tensor]:
        a_here = a[self._here]
        predicted = a_here @ b.T
        errors = torch.addcmul(self._sums, self._counts, predicted, value=-1).neg_()
        rest = torch.dot(predicted.view(-1), (errors - self._sums).view(-1))
        return float(rest), self._placed(2 * (errors @ b), a), 2 * (errors.T @ a_here)

    def _weighted_sums(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self._placed(self._counts.mv(b), a), self._counts.T.mv(a[self._here])

    def _placed(self, found: Tensor, like: Tensor) -> Tensor:
        """What was found for the rows that are here, among zeros for all others."""
        if len(found) == len(like):
            return found
        placed = torch.zeros_like(like)
        placed[self._here] = found
        return placed

    def _equations(
        self, side: str, moments: Tensor, weight: Tensor, rows: slice
    ) -> tuple[Tensor, Tensor]:
        if side == "items":
            counts, sums = self._counts.T[rows], self._sums.T[rows]
            return counts @ moments[self._here], sums @ weight[self._here]
        start, stop, _ = rows.indices(self._users.num_rows)
        mine = slice(start - self._first, stop - self._first)
        return self._counts[mine] @ moments, self._sums[mine] @ weight


class SparsePairStatistics(PairStatistics):
    """A list of the pairs of rows that occur, with their counts and sums, in both orders."""

    def _build(self, user_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> None:
        rows, columns = self._users.num_rows, self._items.num_rows
        self._pairs = pairs = Pairs(user_rows, item_rows, rows, columns)
        self._counts = pairs.counts.astype(np.float32)
        self._row_starts, self._columns = _starts(pairs.rows, rows), pairs.columns
        self._order = stable_order(self._columns, columns)
        self._rows = pairs.rows[self._order]
        self._column_starts = _starts(self._columns, columns)
        self._errors = np.empty(len(self._counts), np.float32)

    def _sum(self, targets: NDArray[np.float32]) -> None:
        sums = np.bincount(self._pairs.number, targets, len(self._counts))
        self._sums = sums.astype(np.float32)

    def _evaluate(self, a: Tensor, b: Tensor) -> tuple[float, Tensor, Tensor]:
        a_rows, b_rows = a.numpy(), b.numpy()
        user_slopes, item_slopes = np.zeros_like(a_rows), np.zeros_like(b_rows)
        rest = row_errors(
            self._row_starts,
            self._columns,
            self._counts,
            self._sums,
            a_rows,
            b_rows,
            self._errors,
            user_slopes,
        )
        column_slopes(
            self._column_starts, self._rows, self._order, self._errors, a_rows, item_slopes
        )
        return rest, torch.from_numpy(user_slopes).mul_(2), torch.from_numpy(item_slopes).mul_(2)

    def _weighted_sums(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        rows = np.repeat(np.arange(len(a)), np.diff(self._row_starts))
        users = np.bincount(rows, self._counts * b.numpy()[self._columns], len(a))
        items = np.bincount(self._columns, self._counts * a.numpy()[rows], len(b))
        return torch.from_numpy(users).to(a.dtype), torch.from_numpy(items).to(b.dtype)

    def _equations(
        self, side: str, moments: Tensor, weight: Tensor, rows: slice
    ) -> tuple[Tensor, Tensor]:
        if side == "users":
            starts, partners = self._row_starts, self._columns
            counts, sums = self._counts, self._sums
        else:
            starts, partners = self._column_starts, self._rows
            counts, sums = self._counts[self._order], self._sums[self._order]
        first, last, _ = rows.indices(len(starts) - 1)
        matrices = np.zeros((last - first, moments.shape[1]), np.float32)
        right = np.zeros((last - first, weight.shape[1]), np.float32)
        normal_equations(
            starts,
            partners,
            counts,
            sums,
            moments.numpy(),
            weight.numpy(),
            first,
            matrices,
            right,
        )
        return torch.from_numpy(matrices), torch.from_numpy(right)


@lru_cache
def _halves(dim: int) -> tuple[Tensor, Tensor]:
    """Where the lower half of a flattened dim × dim matrix is, and where in it each place is."""
    row, column = torch.tril_indices(dim, dim)
    place = torch.empty(dim, dim, dtype=torch.long)
    place[row, column] = place[column, row] = torch.arange(len(row))
    return row * dim + column, place.flatten()


def _starts(sorted_or_not: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    counts = np.bincount(sorted_or_not, minlength=size)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
