"""The exact collapse: interactions of rows that predict alike, summed up."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.id_map import UNSEEN
from celrec.data.interactions import Interactions
from celrec.embeddings.shared_rows import SharedRows
from celrec.training._kernels import add_to_cells, column_slopes, row_errors


class Collapse(ABC):
    """The squared error of a dot product, and its slopes, from sums over pairs of rows.

    All interactions of a pair of rows (r, k) have one prediction p = a_r·b_k, so
    with their number n and the sum s of their targets

        Σ (p − x)² = n·p² − 2·s·p + Σ x²,

    and no pass over the interactions is needed inside a step. Where nothing is
    shared, each pair is an interaction, and the same sums are one fused pass.
    """

    def __init__(self, log: Interactions, users: SharedRows, items: SharedRows) -> None:
        self._users, self._items = users, items
        self._squares = float(np.square(log.target, dtype=np.float64).sum())
        self._log = log
        self._user_rows = self._item_rows = np.empty(0, np.int64)

    def loss_and_slopes(self) -> tuple[float, Tensor, Tensor]:
        """L = Σ (a·b − x)², ∂L/∂a and ∂L/∂b for the rows in use."""
        self._follow_assignments()
        rest, user_slopes, item_slopes = self._evaluate(
            self._users.weight.data[: self._users.num_rows],
            self._items.weight.data[: self._items.num_rows],
        )
        # By rounding, a perfect fit may seem a little better than perfect.
        return max(self._squares + rest, 0.0), user_slopes, item_slopes

    def curvature_bounds(self) -> tuple[Tensor, Tensor]:
        """Upper bounds of the curvature of L along each row: 2·Σ n·‖b‖² and 2·Σ n·‖a‖².

        They are the traces of the rows' Hessians, which the largest eigenvalue does
        not exceed.
        """
        self._follow_assignments()
        a = self._users.weight.data[: self._users.num_rows].square().sum(1)
        b = self._items.weight.data[: self._items.num_rows].square().sum(1)
        users, items = self._weighted_sums(a, b)
        return 2 * users, 2 * items

    def _follow_assignments(self) -> None:
        user_rows, item_rows = _rows_of(self._users), _rows_of(self._items)
        if not (
            np.array_equal(user_rows, self._user_rows)
            and np.array_equal(item_rows, self._item_rows)
        ):
            self._build(user_rows, item_rows)
            self._user_rows, self._item_rows = user_rows, item_rows

    @abstractmethod
    def _build(self, user_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> None:
        """Sum up the interactions anew for these rows of users and items."""

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


def collapse(log: Interactions, users: SharedRows, items: SharedRows) -> Collapse:
    """The form that fits: matrices of all pairs of rows, or a list of those that occur."""
    cells = users.weight.shape[0] * items.weight.shape[0]
    return (DenseCollapse if cells <= 4 * len(log) else SparseCollapse)(log, users, items)


class DenseCollapse(Collapse):
    """Matrices of counts W and sums X: with P = A·Bᵀ and E = W∘P − X, slopes 2·E·B and 2·Eᵀ·A."""

    def _build(self, user_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> None:
        shape = (self._users.num_rows, self._items.num_rows)
        # float32 would stop counting at 2²⁴, which one cell can have while clusters are few.
        counts, sums = np.zeros(shape), np.zeros(shape)
        log = self._log
        add_to_cells(user_rows[log.user], item_rows[log.item], log.target, 1.0, counts, sums)
        self._counts, self._sums = torch.from_numpy(counts).float(), torch.from_numpy(sums).float()

    def _evaluate(self, a: Tensor, b: Tensor) -> tuple[float, Tensor, Tensor]:
        predicted = a @ b.T
        errors = torch.addcmul(self._sums, self._counts, predicted, value=-1).neg_()
        rest = torch.dot(predicted.view(-1), (errors - self._sums).view(-1))
        return float(rest), 2 * (errors @ b), 2 * (errors.T @ a)

    def _weighted_sums(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self._counts.mv(b), self._counts.T.mv(a)


class SparseCollapse(Collapse):
    """A list of the pairs of rows that occur, with their counts and sums, in both orders."""

    def _build(self, user_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> None:
        columns = self._items.num_rows
        log = self._log
        cells = user_rows[log.user] * columns + item_rows[log.item]
        pairs, where = np.unique(cells, return_inverse=True)
        self._counts = np.bincount(where).astype(np.float32)
        self._sums = np.bincount(where, log.target).astype(np.float32)
        rows, self._columns = np.divmod(pairs, columns)
        self._row_starts = _starts(rows, self._users.num_rows)
        self._order = np.argsort(self._columns, kind="stable")
        self._rows = rows[self._order]
        self._column_starts = _starts(self._columns, columns)
        self._errors = np.empty(len(pairs), np.float32)

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


def _starts(sorted_or_not: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    counts = np.bincount(sorted_or_not, minlength=size)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
