"""Fused passes over interactions, in machine code."""

from __future__ import annotations

from typing import TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import compiled, compiled_parallel

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
_SINGLE = 32  # terms that are summed up in single precision


@compiled_parallel
def candidate_losses(starts: I64, partners: I64, targets: F32, predicted: F32, losses: F32) -> None:
    """Σ (x − predicted[partner, k])² over the interactions of each id, for every k.

    Partial sums of a few dozen terms are in single precision, which is twice as fast, their
    totals in double precision.
    """
    clusters = predicted.shape[1]
    for own in numba.prange(len(starts) - 1):
        total = np.zeros(clusters, np.float64)
        some = np.zeros(clusters, np.float32)
        stop = starts[own + 1]
        for first in range(starts[own], stop, _SINGLE):
            for n in range(first, min(first + _SINGLE, stop)):
                row = predicted[partners[n]]
                target = targets[n]
                for k in range(clusters):
                    error = row[k] - target
                    some[k] += error * error
            for k in range(clusters):
                total[k] += some[k]
                some[k] = 0
        for k in range(clusters):
            losses[own, k] = total[k]


@compiled
def stable_order(keys: I64, size: int) -> I64:
    """The stable sorting permutation of keys 0 … size − 1, by counting."""
    places = np.zeros(size + 1, np.int64)
    for key in keys:
        places[key + 1] += 1
    for key in range(size):
        places[key + 1] += places[key]
    order = np.empty(len(keys), np.int64)
    for n in range(len(keys)):
        order[places[keys[n]]] = n
        places[keys[n]] += 1
    return order


@compiled_parallel
def member_gradients(
    members: I64,
    starts: I64,
    partners: I64,
    targets: F32,
    own_rows: I64,
    partner_weight: F32,
    own_weight: F32,
    gradients: F64,
) -> None:
    """2·Σ (x − a·b)·a over the interactions of each member, with a the partner's row."""
    dim = own_weight.shape[1]
    for m in numba.prange(len(members)):
        own = own_weight[own_rows[members[m]]]
        for n in range(starts[members[m]], starts[members[m] + 1]):
            partner = partner_weight[partners[n]]
            predicted = np.float32(0)
            for d in range(dim):
                predicted += own[d] * partner[d]
            error = 2 * (targets[n] - predicted)
            for d in range(dim):
                gradients[m, d] += error * partner[d]


@compiled_parallel
def row_errors(
    starts: I64, columns: I64, counts: F32, sums: F32, a: F32, b: F32, errors: F32, slope: F32
) -> float:
    """Per pair: error = n·(a·b) − Σx, slope += error·b; returns Σ (a·b)·(error − Σx)."""
    dim = a.shape[1]
    rest = np.zeros(len(starts) - 1, np.float64)
    for row in numba.prange(len(starts) - 1):
        for p in range(starts[row], starts[row + 1]):
            predicted = np.float32(0)
            for d in range(dim):
                predicted += a[row, d] * b[columns[p], d]
            error = counts[p] * predicted - sums[p]
            errors[p] = error
            rest[row] += predicted * (error - sums[p])
            for d in range(dim):
                slope[row, d] += error * b[columns[p], d]
    return float(rest.sum())


@compiled_parallel
def column_slopes(starts: I64, rows: I64, order: I64, errors: F32, a: F32, slope: F32) -> None:
    """The gradient of the other table from the same errors: slope += error·a."""
    dim = a.shape[1]
    for column in numba.prange(len(starts) - 1):
        for p in range(starts[column], starts[column + 1]):
            error = errors[order[p]]
            for d in range(dim):
                slope[column, d] += error * a[rows[p], d]


@compiled_parallel
def partner_means(members: I64, starts: I64, partners: I64, weight: F32, means: F64) -> None:
    """The mean row of the partners of each member, 0 for members without interactions."""
    dim = weight.shape[1]
    for m in numba.prange(len(members)):
        first, last = starts[members[m]], starts[members[m] + 1]
        for n in range(first, last):
            for d in range(dim):
                means[m, d] += weight[partners[n], d]
        if last > first:
            for d in range(dim):
                means[m, d] /= last - first


@compiled_parallel
def unexplained_sums(
    starts: I64,
    partners: I64,
    targets: F32,
    own_rows: I64,
    partner_weight: F32,
    own_weight: F32,
    sums: F64,
) -> None:
    """Σ (x − a·b) over the interactions of each id."""
    dim = own_weight.shape[1]
    for own in numba.prange(len(starts) - 1):
        total = 0.0
        partner_sum = np.zeros(dim, np.float64)
        for n in range(starts[own], starts[own + 1]):
            total += targets[n]
            for d in range(dim):
                partner_sum[d] += partner_weight[partners[n], d]
        row = own_weight[own_rows[own]]
        for d in range(dim):
            total -= partner_sum[d] * row[d]
        sums[own] = total


@compiled_parallel
def normal_equations(
    starts: I64,
    partners: I64,
    counts: F32,
    sums: F32,
    moments: F32,
    weight: F32,
    first: int,
    matrices: F32,
    right: F32,
) -> None:
    """Σ n·M and Σ s·row over the pairs of rows first, first + 1, …; M and row are the partner's."""
    entries, dim = moments.shape[1], weight.shape[1]
    for r in numba.prange(len(matrices)):
        for p in range(starts[first + r], starts[first + r + 1]):
            partner = partners[p]
            for e in range(entries):
                matrices[r, e] += counts[p] * moments[partner, e]
            for d in range(dim):
                right[r, d] += sums[p] * weight[partner, d]


@compiled_parallel
def outer_sums(
    ids: I64,
    starts: I64,
    partners: I64,
    targets: F32,
    codes: I32,
    rows: F32,
    matrices: F32,
    right: F32,
) -> None:
    """Σ x·xᵀ and Σ target·x over the interactions of each of some ids, added to zeros.

    Ids beyond the last have none.

    The vector of a partner is a sum of rows, one of each level l, followed by 1 for the bias of
    the id: x = (Σ_l rows[l, codes[partner, l]], 1).
    """
    dim = rows.shape[2] + 1
    for place in numba.prange(len(ids)):
        if ids[place] + 1 >= len(starts):
            continue
        matrix, sums = matrices[place], right[place]
        # Four at a time, so that a number of the matrix is read and written a fourth as often.
        a, b = np.ones(dim, np.float32), np.ones(dim, np.float32)
        c, d = np.ones(dim, np.float32), np.ones(dim, np.float32)
        n, stop = starts[ids[place]], starts[ids[place] + 1]
        while n + 4 <= stop:
            _add_rows(rows, codes, partners[n], a)
            _add_rows(rows, codes, partners[n + 1], b)
            _add_rows(rows, codes, partners[n + 2], c)
            _add_rows(rows, codes, partners[n + 3], d)
            for i in range(dim):
                p, q, r, s = a[i], b[i], c[i], d[i]
                sums[i] += targets[n] * p + targets[n + 1] * q
                sums[i] += targets[n + 2] * r + targets[n + 3] * s
                row = matrix[i]
                for j in range(i + 1):
                    row[j] += p * a[j] + q * b[j] + r * c[j] + s * d[j]
            n += 4
        for last in range(n, stop):
            _add_rows(rows, codes, partners[last], a)
            for i in range(dim):
                sums[i] += targets[last] * a[i]
                for j in range(i + 1):
                    matrix[i, j] += a[i] * a[j]
        for i in range(dim):
            for j in range(i):
                matrix[j, i] = matrix[i, j]


@compiled
def _add_rows(rows: F32, codes: I32, partner: int, x: F32) -> None:
    """Write Σ_l rows[l, codes[partner, l]] to the first places of x."""
    for i in range(rows.shape[2]):
        x[i] = rows[0, codes[partner, 0], i]
    for level in range(1, rows.shape[0]):
        for i in range(rows.shape[2]):
            x[i] += rows[level, codes[partner, level], i]
