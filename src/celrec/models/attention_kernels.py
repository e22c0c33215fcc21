"""Numba kernels of target attention, forward and backward.

The data of one sample stays in the CPU cache, and rows are read in place. Tensor operations would
write and read the gathered rows, the activations and their gradients for the whole batch, which
takes longer than computing them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.floating[Any]]
_ANY_ORDER = {"reassoc", "contract", "nsz", "arcp"}  # of sums; infinities and NaN stay


@numba.njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def attention_forward(
    row: NDArray[np.int64],
    filled: NDArray[np.bool_],
    target: Numbers,
    alone: Numbers,
    rows: Numbers,
    scale: Numbers,
    shift: Numbers,
    first_slope: Numbers,
    second: Numbers,
    second_bias: Numbers,
    second_slope: Numbers,
    last: Numbers,
    last_bias: Numbers,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Interests, weights and the pre-activations of both layers, as `fused_attention` defines."""
    samples, length = row.shape
    dim, width, upper = rows.shape[1], len(scale), len(second)
    kind = rows.dtype.type
    one_by_root = kind(1 / np.sqrt(dim))
    slope, upper_slope = first_slope[0], second_slope[0]  # loops over arrays alone are vectorised
    interest = np.zeros((samples, dim), rows.dtype)
    weights = np.zeros((samples, length), rows.dtype)
    first_sums = np.empty((samples, length, width), rows.dtype)
    second_sums = np.empty((samples, length, upper), rows.dtype)
    matrix, units = np.empty_like(scale), np.empty(width, rows.dtype)
    for n in range(samples):
        for h in range(width):
            for d in range(dim):
                matrix[h, d] = scale[h, d] * target[n, d] + shift[h, d]
        for k in range(length):
            if filled[n, k]:
                r = row[n, k]
                for h in range(width):
                    total = kind(0)
                    for d in range(dim):
                        total += matrix[h, d] * rows[r, d]
                    first_sums[n, k, h] = total + alone[n, h]
        highest = kind(-np.inf)
        for k in range(length):
            if filled[n, k]:
                for h in range(width):
                    x = first_sums[n, k, h]
                    units[h] = x if x > 0 else slope * x
                score = kind(0)
                for g in range(upper):
                    x = kind(0)
                    for h in range(width):
                        x += second[g, h] * units[h]
                    x += second_bias[g]
                    second_sums[n, k, g] = x
                    score += last[g] * (x if x > 0 else upper_slope * x)
                score = (score + last_bias[0]) * one_by_root
                weights[n, k] = score
                highest = score if score > highest else highest
        total = kind(0)
        for k in range(length):
            if filled[n, k]:
                weights[n, k] = np.exp(weights[n, k] - highest)
                total += weights[n, k]
        for k in range(length):
            if filled[n, k]:
                r, weight = row[n, k], weights[n, k] / total
                weights[n, k] = weight
                for d in range(dim):
                    interest[n, d] += weight * rows[r, d]
    return interest, weights, first_sums, second_sums


@numba.njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def attention_backward(
    row: NDArray[np.int64],
    filled: NDArray[np.bool_],
    target: Numbers,
    alone: Numbers,
    rows: Numbers,
    scale: Numbers,
    shift: Numbers,
    first_slope: Numbers,
    second: Numbers,
    second_bias: Numbers,
    second_slope: Numbers,
    last: Numbers,
    last_bias: Numbers,
    weights: Numbers,
    first_sums: Numbers,
    second_sums: Numbers,
    of_interest: Numbers,
    of_weights: Numbers,
) -> tuple[Numbers, ...]:
    """Gradients of the inputs of `attention_forward` from `target` on."""
    samples, length = row.shape
    dim, width, upper = rows.shape[1], len(scale), len(second)
    kind = rows.dtype.type
    one_by_root = kind(1 / np.sqrt(dim))
    slope, upper_slope = first_slope[0], second_slope[0]  # loops over arrays alone are vectorised
    of_target, of_alone, of_rows = np.zeros_like(target), np.zeros_like(alone), np.zeros_like(rows)
    of_scale, of_shift = np.zeros_like(scale), np.zeros_like(shift)
    of_first_slope, of_second_slope = np.zeros_like(first_slope), np.zeros_like(second_slope)
    of_second, of_second_bias = np.zeros_like(second), np.zeros_like(second_bias)
    of_last, of_last_bias = np.zeros_like(last), np.zeros_like(last_bias)
    matrix, of_matrix = np.empty_like(scale), np.empty_like(scale)
    units, of_units = np.empty(width, rows.dtype), np.empty((length, width), rows.dtype)
    of_weight, of_key = np.empty(length, rows.dtype), np.empty(dim, rows.dtype)
    for n in range(samples):
        mean = kind(0)
        for k in range(length):
            if filled[n, k]:
                r = row[n, k]
                total = kind(0)
                for d in range(dim):
                    total += of_interest[n, d] * rows[r, d]
                of_weight[k] = of_weights[n, k] + total
                mean += weights[n, k] * of_weight[k]
        # Sums over one sample first, so that those over all stay exact.
        of_slope, of_upper_slope, of_bias = kind(0), kind(0), kind(0)
        for k in range(length):
            if filled[n, k]:
                of_score = weights[n, k] * (of_weight[k] - mean) * one_by_root
                of_bias += of_score
                for h in range(width):
                    x = first_sums[n, k, h]
                    units[h] = x if x > 0 else slope * x
                    of_units[k, h] = 0
                for g in range(upper):
                    x = second_sums[n, k, g]
                    of_last[g] += of_score * (x if x > 0 else upper_slope * x)
                    here = of_score * last[g]
                    of_upper_slope += here * (kind(0) if x > 0 else x)
                    here = here if x > 0 else here * upper_slope
                    of_second_bias[g] += here
                    for h in range(width):
                        of_second[g, h] += here * units[h]
                    for h in range(width):
                        of_units[k, h] += here * second[g, h]
                for h in range(width):
                    x, here = first_sums[n, k, h], of_units[k, h]
                    of_slope += here * (kind(0) if x > 0 else x)
                    here = here if x > 0 else here * slope
                    of_units[k, h] = here
                    of_alone[n, h] += here
        of_first_slope[0] += of_slope
        of_second_slope[0] += of_upper_slope
        of_last_bias[0] += of_bias
        for h in range(width):
            for d in range(dim):
                matrix[h, d] = scale[h, d] * target[n, d] + shift[h, d]
                of_matrix[h, d] = 0
        for k in range(length):
            if filled[n, k]:
                r, weight = row[n, k], weights[n, k]
                for d in range(dim):
                    of_key[d] = weight * of_interest[n, d]
                for h in range(width):
                    here = of_units[k, h]
                    for d in range(dim):
                        of_matrix[h, d] += here * rows[r, d]
                        of_key[d] += here * matrix[h, d]
                for d in range(dim):
                    of_rows[r, d] += of_key[d]
        for h in range(width):
            for d in range(dim):
                of_target[n, d] += of_matrix[h, d] * scale[h, d]
                of_scale[h, d] += of_matrix[h, d] * target[n, d]
                of_shift[h, d] += of_matrix[h, d]
    first = of_target, of_alone, of_rows, of_scale, of_shift, of_first_slope
    return *first, of_second, of_second_bias, of_second_slope, of_last, of_last_bias
