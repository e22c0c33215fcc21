"""Gradient steps of the rows that a batch looks up, and of no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.config.online import RowDescentConfig
from celrec.errors import CelrecError
from celrec.runtime.jit import Floats, Ints, ShortInts, compiled
from celrec.runtime.memory_budget import GrowingRows, MemoryBudget


@compiled
def sum_by_row(
    rows: Ints, values: Floats, place: ShortInts, touched: Ints, sums: Floats, counts: Floats
) -> int:
    """Sums of `values` over equal `rows`; how many different rows there are.

    `place` is −1 for every row of the table, and is left so. The different rows are put in
    `touched`, in order of appearance, their sums and numbers in `sums` and `counts`.
    """
    different = 0
    for event in range(len(rows)):
        row = rows[event]
        at = place[row]
        if at < 0:
            at = different
            place[row] = at
            touched[at] = row
            sums[at] = 0
            counts[at] = 0
            different += 1
        counts[at] += 1
        for d in range(values.shape[1]):
            sums[at, d] += values[event, d]
    for at in range(different):
        place[touched[at]] = -1
    return different


@compiled
def descend_rows(
    weight: Floats,
    squares: Floats,
    rows: Ints,
    gradients: Floats,
    rate: float,
    pull: float,
    adaptive: bool,
    least: float,
) -> np.float32:
    """One step of gradient descent or AdaGrad for distinct rows.

    The result only keeps the first loop from being optimised away: it prefetches all rows, which
    halves the time if the table is larger than the cache.
    """
    early = np.float32(0)
    for event in range(len(rows)):
        early += weight[rows[event], 0]
        if adaptive:
            early += squares[rows[event], 0]
    for event in range(len(rows)):
        row = rows[event]
        for d in range(weight.shape[1]):
            gradient = gradients[event, d] + pull * weight[row, d]
            step = rate * gradient
            if adaptive:
                squares[row, d] += gradient * gradient
                step /= np.sqrt(squares[row, d])
            weight[row, d] = max(weight[row, d] - step, least)
    return early


_FLOAT32 = np.dtype(np.float32)


class RowDescent:
    """Gradient steps for some rows of a table, in time independent of its size.

    With g the mean of the gradients at a row over the batch, and of l2·row,

        AdaGrad: s ← s + g²,  row ← row − rate·g/√s;    SGD: row ← row − rate·g.

    >>> rows = torch.zeros(3, 1)
    >>> descent = RowDescent(rows, RowDescentConfig(rule="sgd", learning_rate=1.0))
    >>> descent.step(torch.tensor([2, 0, 2]), torch.tensor([[1.0], [4.0], [3.0]]))
    >>> rows.tolist()
    [[-4.0], [0.0], [-2.0]]
    """

    def __init__(
        self, weight: Tensor, how: RowDescentConfig, budget: MemoryBudget | None = None
    ) -> None:
        self._how = how
        self._least = 0.0 if how.non_negative else -np.inf
        self._table, self._adaptive = weight, how.rule == "adagrad"
        self._budget = budget
        self._square_rows = self._fresh(0)
        self._place_rows = GrowingRows(np.dtype(np.int32), budget=budget)
        self.squares, self._place = self._square_rows.first(0), self._place_rows.first(0)
        self._follow()

    def _follow(self) -> None:
        """Follow a table that has grown or moved in memory."""
        rows = self._table.detach().numpy()
        if rows.dtype != np.float32:
            raise CelrecError(f"weight must be of float32, not {rows.dtype}")
        self._weight = rows  # first, to release the old memory
        if self._adaptive:
            self._fit_squares(len(self.squares), len(rows))
        del self._place  # a view would keep it from growing in place
        self._place_rows.grow(len(rows))
        self._place = self._place_rows.first(len(rows))
        self._place.fill(-1)

    def _fit_squares(self, known: int, rows: int) -> None:
        """Resize the sums to `rows` rows, of which the first `known` stay."""
        self.squares = self.squares[:0].copy()  # a view would keep them from growing in place
        self._square_rows.grow(rows)
        self.squares = self._square_rows.first(rows)
        self.squares[known:] = self._how.first_square

    @property
    def nbytes(self) -> int:
        """Bytes in addition to the table."""
        self._follow_if_moved()
        return self.squares.nbytes + self._place.nbytes

    def step(self, rows: Tensor, gradients: Tensor) -> None:
        """One step for a batch of lookups, given their rows and gradients."""
        self._follow_if_moved()
        count = len(rows)
        touched, counts = np.empty(count, np.int64), np.empty(count, np.float32)
        sums = np.empty((count, self._weight.shape[1]), np.float32)
        values = gradients.detach().numpy()
        different = sum_by_row(rows.numpy(), values, self._place, touched, sums, counts)
        if self._how.average:
            sums[:different] /= counts[:different, None]
        self.descend(touched[:different], sums[:different])

    def descend(self, rows: Any, gradients: Any) -> None:
        """One step for distinct rows."""
        self._follow_if_moved()
        how = self._how
        descend_rows(
            self._weight,
            self.squares,
            rows,
            gradients,
            how.learning_rate,
            how.l2,
            self._adaptive,
            self._least,
        )

    def _follow_if_moved(self) -> None:
        moved = self._table.data_ptr() != self._weight.ctypes.data
        if moved or len(self._table) != len(self._weight):
            self._follow()

    def copy(self, rows: Iterable[int], new: Iterable[int]) -> None:
        """Copy the state of `rows` to `new` rows, one after the other."""
        self._follow_if_moved()
        if len(self.squares):
            for known, other in zip(rows, new, strict=True):
                self.squares[other] = self.squares[known]

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep the state of these rows, which are the first ones of the table now."""
        if self._adaptive:
            before, self._square_rows = self.squares, self._fresh(len(rows))
            self.squares = self._square_rows.first(len(rows))
            if len(before):
                np.take(before, rows, 0, out=self.squares, mode="clip")
            others = rows >= len(before)  # they have come since the last step
            self.squares[others] = self._how.first_square
        self._follow()

    def _fresh(self, rows: int) -> GrowingRows:
        return GrowingRows(_FLOAT32, self._table.shape[1:], rows, self._budget)

    def state_dict(self) -> dict[str, Tensor]:
        """AdaGrad's sums."""
        self._follow_if_moved()
        return {"squares": torch.from_numpy(self.squares)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up what `state_dict` gave."""
        squares = state["squares"].numpy()
        self._fit_squares(0, len(squares))
        self.squares[:] = squares
        self._follow()
