"""Solvers of many small quadratic problems, one per row: ridge regression and ADMM."""

from __future__ import annotations

import numba
import numpy as np

from celrec.offline.kernels import F32, F64
from celrec.runtime.jit import compiled, compiled_parallel

_ROUNDING = 2.0**-23  # of a number in single precision


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
    """Ridge solutions x = (D + Λ)⁻¹(d + Λ·anchor) of many rows, written to `rows`.

    Λ is `ridge`, plus a little against rounding. If `passes` is not 0, x ≥ 0 is found by so many
    passes of coordinate descent from the row as it was. `moments` become x·xᵀ, plus the
    covariance noise·(D + Λ)⁻¹ if noise is not 0. Returns Σ ⟨D, moment⟩ − 2·d·x.
    """
    count, dim = rows.shape
    losses = np.zeros(count, np.float64)
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
            losses[r] -= 2 * data_right[r, i] * x[i]
            for j in range(dim):
                moment = x[i] * x[j] + noise * inverse[i, j]
                moments[r, i, j] = moment
                losses[r] += data[r, i, j] * moment
    return float(losses.sum())


@compiled_parallel
def draw_rows(
    data: F32,
    data_right: F32,
    precision: F64,
    prior_right: F64,
    weight: float,
    normals: F64,
    rows: F32,
) -> float:
    """Draws from N(P⁻¹·r, P⁻¹), P = Λ + weight·D and r = prior_right + weight·d, for many rows.

    Λ is `precision`. `normals` are numbers from N(0, 1), one for each number of `rows`, where the
    draws are written. Returns Σ xᵀDx − 2·d·x.
    """
    count, dim = rows.shape
    losses = np.zeros(count, np.float64)
    for r in numba.prange(count):
        upper = np.empty((dim, dim), np.float64)
        x = np.empty(dim, np.float64)
        for i in range(dim):
            x[i] = prior_right[i] + weight * data_right[r, i]
            for j in range(dim):
                upper[i, j] = precision[i, j] + weight * data[r, i, j]
        _factorise(upper)
        for i in range(dim):  # Uᵀy = r, row by row
            x[i] /= upper[i, i]
            for j in range(i + 1, dim):
                x[j] -= upper[i, j] * x[i]
        for i in range(dim):
            x[i] += normals[r, i]
        for i in range(dim - 1, -1, -1):  # U·x = y + normals
            for j in range(i + 1, dim):
                x[i] -= upper[i, j] * x[j]
            x[i] /= upper[i, i]
        for i in range(dim):
            rows[r, i] = x[i]
            losses[r] -= 2 * data_right[r, i] * x[i]
            for j in range(dim):
                losses[r] += data[r, i, j] * x[i] * x[j]
    return float(losses.sum())


@compiled
def _factorise(upper: F64) -> None:
    """The Cholesky factor U of UᵀU, in the place of the upper half of the matrix.

    A pivot that is lost in the rounding of its diagonal in single precision counts as that error.
    """
    dim = len(upper)
    least = np.diag(upper) * _ROUNDING
    for k in range(dim):
        root = np.sqrt(max(upper[k, k], least[k]))
        for j in range(k, dim):
            upper[k, j] /= root
        for i in range(k + 1, dim):
            scale = upper[k, i]
            for j in range(i, dim):
                upper[i, j] -= scale * upper[k, j]


@compiled
def _invert(matrix: F64, inverse: F64) -> None:
    """The inverse of a positive definite matrix, by Cholesky, with inner loops along rows."""
    dim = len(matrix)
    upper = matrix.copy()
    _factorise(upper)
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
    x = max(0, x̃ − u), u += x − x̃, for at most `iterations`. ADMM is not monotone; a row whose
    objective would rise stays as it was. Returns Σ xᵀDx − 2·dᵀx.
    """
    count, dim = rows.shape
    losses = np.zeros(count, np.float64)
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
            target = right + rho * (x + u)
            for i in range(dim):
                free = 0.0
                for j in range(dim):
                    free += inverse[i, j] * target[j]
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
            losses[r] -= 2 * data_right[r, i] * rows[r, i]
            for j in range(dim):
                losses[r] += data[r, i, j] * rows[r, i] * rows[r, j]
    return float(losses.sum())


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
