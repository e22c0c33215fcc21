"""Loops over rows that descend, in machine code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from celrec.data.compiled import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@compiled
def sum_by_row(
    rows: Ints,
    values: Floats,
    place: NDArray[np.int32],
    touched: Ints,
    sums: Floats,
    counts: Floats,
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
    """One step of gradient descent or AdaGrad for some rows, all different.

    What is returned means nothing: it stands for having looked at all rows once. Memory answers
    several questions at a time if none waits for the answer to another, which halves the time
    where a table is too large for a cache.
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
