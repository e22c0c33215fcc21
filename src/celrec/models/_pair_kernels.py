"""Products of a target with each item of its history, in machine code.

A sample's matrix W∘q + V and its gradient stay in the processor's cache; as tensor operations
they would be written and read again for a whole batch, which takes longer than the products.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.floating[Any]]
_ANY_ORDER = {"reassoc", "contract", "nsz", "arcp"}  # of sums; infinities and NaN stay


@numba.njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def multiply(target: Numbers, keys: Numbers, scale: Numbers, shift: Numbers) -> Numbers:
    """See `pair_products`."""
    samples, length, dim = keys.shape
    width = len(scale)
    found = np.empty((samples, length, width), keys.dtype)
    matrix = np.empty_like(scale)
    for n in range(samples):
        for h in range(width):
            for d in range(dim):
                matrix[h, d] = scale[h, d] * target[n, d] + shift[h, d]
        for k in range(length):
            for h in range(width):
                total = keys.dtype.type(0)
                for d in range(dim):
                    total += matrix[h, d] * keys[n, k, d]
                found[n, k, h] = total
    return found


@numba.njit(cache=True, nogil=True, fastmath=_ANY_ORDER)
def gradients(
    target: Numbers, keys: Numbers, scale: Numbers, shift: Numbers, slope: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Those at the four inputs of `multiply`, given that at what it found."""
    samples, length, dim = keys.shape
    width = len(scale)
    of_target, of_keys = np.zeros_like(target), np.zeros_like(keys)
    of_scale, of_shift = np.zeros_like(scale), np.zeros_like(shift)
    matrix, of_matrix = np.empty_like(scale), np.empty_like(scale)
    for n in range(samples):
        for h in range(width):
            for d in range(dim):
                matrix[h, d] = scale[h, d] * target[n, d] + shift[h, d]
                of_matrix[h, d] = 0
        for k in range(length):
            for h in range(width):
                here = slope[n, k, h]
                for d in range(dim):
                    of_matrix[h, d] += here * keys[n, k, d]
                    of_keys[n, k, d] += here * matrix[h, d]
        for h in range(width):
            for d in range(dim):
                of_target[n, d] += of_matrix[h, d] * scale[h, d]
                of_scale[h, d] += of_matrix[h, d] * target[n, d]
                of_shift[h, d] += of_matrix[h, d]
    return of_target, of_keys, of_scale, of_shift
