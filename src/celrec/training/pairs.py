"""Which rows meet in interactions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.training._kernels import stable_order


class Pairs:
    """The distinct pairs (row, column) that occur, by row and then by column.

    They are found by two counting sorts, so in time that grows with the interactions, not
    with their logarithm too.

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
