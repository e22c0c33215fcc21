"""Passes over interactions that would take several as tensor operations."""

from __future__ import annotations

from typing import TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from celrec.runtime.jit import compiled, compiled_parallel

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]
_SINGLE = 32  # terms that are summed up in single precision


@compiled_parallel
def candidate_losses(starts: I64, partners: I64, targets: F32, predicted: F32, losses: F32) -> None:
    """Σ (x − predicted[partner, k])² over the interactions of each id, for every k.

    Sums of a few dozen are made in single precision, which is twice as fast, and these are summed
    in double precision.
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
    """The places of keys 0 … size − 1 in ascending order, of equal ones the earlier first."""
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
def products_by_row(matrices: F32, rows: I64, vectors: F32, products: F32) -> None:
    """The product of the matrix of each row with a vector: Σ_b matrices[row, a, b]·vector[b].

    Without a copy of a matrix for each row, which takes ten times as long as the products.
    """
    dim = vectors.shape[1]
    for n in numba.prange(len(rows)):
        matrix, vector = matrices[rows[n]], vectors[n]
        for a in range(dim):
            total = np.float32(0)
            for b in range(dim):
                total += matrix[a, b] * vector[b]
            products[n, a] = total


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
    """g_j = 2·Σ (x − a·b)·a over the interactions of each member, a its partner's row."""
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
    """For each row of pairs: errors n·(a·b) − Σx, slope += error·b; gives Σ (a·b)·(error − Σx)."""
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
    """The other side's slopes from errors that are known: slope += error·a."""
    dim = a.shape[1]
    for column in numba.prange(len(starts) - 1):
        for p in range(starts[column], starts[column + 1]):
            error = errors[order[p]]
            for d in range(dim):
                slope[column, d] += error * a[rows[p], d]


@compiled_parallel
def partner_means(members: I64, starts: I64, partners: I64, weight: F32, means: F64) -> None:
    """The mean row of the partners of each member; a member without any keeps its 0."""
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
    """Σ n·M and Σ s·row over the pairs of rows first, first + 1, …, M and row the partner's."""
    entries, dim = moments.shape[1], weight.shape[1]
    for r in numba.prange(len(matrices)):
        for p in range(starts[first + r], starts[first + r + 1]):
            partner = partners[p]
            for e in range(entries):
                matrices[r, e] += counts[p] * moments[partner, e]
            for d in range(dim):
                right[r, d] += sums[p] * weight[partner, d]


@compiled_parallel
def solve_rows(
    data: F32,
    data_right: F32,
    ridge: F64,
    anchors: F64,
    noise: float,
    passes: int,
    rows: F32,
    moments: F32,
) -> float:
    """Ridge solutions x = (D + Λ)⁻¹(d + Λ·anchor) of many rows, and the error that is left.

    Λ is `ridge`, and a little more for rounding. With `passes`, x is at least 0, and
    found by so many passes of coordinate descent from where the row was. `moments`
    become x·xᵀ, plus the covariance noise·(D + Λ)⁻¹ if noise is not 0. Gives
    Σ ⟨D, moment⟩ − 2·d·x.
    """
    count, dim = rows.shape
    left = np.zeros(count, np.float64)
    for r in numba.prange(count):
        matrix = np.empty((dim, dim), np.float64)
        trace = 0.0
        for i in range(dim):
            for j in range(dim):
                matrix[i, j] = data[r, i, j] + ridge[i, j]
            trace += matrix[i, i]
        rounding = 1e-5 * trace / dim  # sums of float32 may be off by that much
        right = np.empty(dim, np.float64)
        for i in range(dim):
            matrix[i, i] += rounding
            right[i] = data_right[r, i] + rounding * anchors[r, i]
            for j in range(dim):
                right[i] += ridge[i, j] * anchors[r, j]
        x = np.zeros(dim, np.float64)
        inverse = np.zeros((dim, dim), np.float64)
        if noise > 0 or passes == 0:
            _invert(matrix, inverse)
        if passes > 0:
            for i in range(dim):
                x[i] = rows[r, i]
            _descend_non_negative(matrix, right, x, passes)
        else:
            for i in range(dim):
                for j in range(dim):
                    x[i] += inverse[i, j] * right[j]
        for i in range(dim):
            rows[r, i] = x[i]
            left[r] -= 2 * data_right[r, i] * x[i]
            for j in range(dim):
                moment = x[i] * x[j] + noise * inverse[i, j]
                moments[r, i, j] = moment
                left[r] += data[r, i, j] * moment
    return float(left.sum())


@compiled
def _invert(matrix: F64, inverse: F64) -> None:
    """The inverse of a positive definite matrix, by Cholesky, with inner loops along rows."""
    dim = len(matrix)
    upper = matrix.copy()  # UᵀU
    for k in range(dim):
        root = np.sqrt(upper[k, k])
        for j in range(k, dim):
            upper[k, j] /= root
        for i in range(k + 1, dim):
            scale = upper[k, i]
            for j in range(i, dim):
                upper[i, j] -= scale * upper[k, j]
    lower = np.zeros((dim, dim), np.float64)  # U⁻ᵀ
    for i in range(dim):
        lower[i, i] = 1.0
        for k in range(i):
            scale = upper[k, i]
            for j in range(k + 1):
                lower[i, j] -= scale * lower[k, j]
        for j in range(i + 1):
            lower[i, j] /= upper[i, i]
    for k in range(dim):
        for i in range(k + 1):
            scale = lower[k, i]
            for j in range(i + 1):
                inverse[i, j] += scale * lower[k, j]
    for i in range(dim):
        for j in range(i):
            inverse[j, i] = inverse[i, j]


@compiled
def _descend_non_negative(matrix: F64, right: F64, x: F64, passes: int) -> None:
    """Cyclic coordinate descent on ½·xᵀMx − rᵀx over x ≥ 0."""
    dim = len(x)
    slope = -right
    for i in range(dim):
        for j in range(dim):
            slope[j] += matrix[i, j] * x[i]
    for _ in range(passes):
        for i in range(dim):
            new = max(0.0, x[i] - slope[i] / matrix[i, i])
            change = new - x[i]
            if change != 0:
                x[i] = new
                for j in range(dim):
                    slope[j] += change * matrix[i, j]


@compiled_parallel
def admm_rows(
    data: F32,
    data_right: F32,
    ridge: float,
    anchors: F64,
    iterations: int,
    tolerance: float,
    rows: F32,
    duals: F32,
) -> float:
    """Lower ½·xᵀ(D + λI)x − (d + λ·anchor)ᵀx over x ≥ 0 for many rows, by ADMM.

    With ρ the mean of D's diagonal: x̃ = (D + (λ + ρ)I)⁻¹(d + λ·anchor + ρ(x + u)),
    x = max(0, x̃ − u), u += x − x̃, at most so many times. ADMM can go up on its way; a row
    that would end higher than it began stays as it was. Gives Σ xᵀDx − 2·dᵀx.
    """
    count, dim = rows.shape
    left = np.zeros(count, np.float64)
    for r in numba.prange(count):
        trace = 0.0
        for i in range(dim):
            trace += data[r, i, i]
        rho = max(trace / dim, 1e-12)
        system = np.empty((dim, dim), np.float64)
        right = np.empty(dim, np.float64)
        for i in range(dim):
            right[i] = data_right[r, i] + ridge * anchors[r, i]
            for j in range(dim):
                system[i, j] = data[r, i, j]
            system[i, i] += ridge + rho
        inverse = np.zeros((dim, dim), np.float64)
        _invert(system, inverse)
        x, u = np.empty(dim, np.float64), np.empty(dim, np.float64)
        for i in range(dim):
            x[i], u[i] = rows[r, i], duals[r, i]
        before = _half_square(data[r], ridge, right, x)
        for _ in range(iterations):
            gap = moved = size = 0.0
            wanted = right + rho * (x + u)
            for i in range(dim):
                free = 0.0
                for j in range(dim):
                    free += inverse[i, j] * wanted[j]
                new = max(0.0, free - u[i])
                u[i] += new - free
                gap += (new - free) ** 2
                moved += (new - x[i]) ** 2
                size += new**2
                x[i] = new
            if gap + moved <= tolerance**2 * size:
                break
        better = _half_square(data[r], ridge, right, x) <= before
        for i in range(dim):
            duals[r, i] = u[i]
            if better:
                rows[r, i] = x[i]
        for i in range(dim):
            left[r] -= 2 * data_right[r, i] * rows[r, i]
            for j in range(dim):
                left[r] += data[r, i, j] * rows[r, i] * rows[r, j]
    return float(left.sum())


@compiled
def _half_square(matrix: F32, ridge: float, right: F64, x: F64) -> float:
    """½·xᵀ(M + λI)x − rᵀx."""
    total = 0.0
    for i in range(len(x)):
        inner = ridge * x[i]
        for j in range(len(x)):
            inner += matrix[i, j] * x[j]
        total += x[i] * (inner / 2 - right[i])
    return total
