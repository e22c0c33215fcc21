"""Just-in-time compilation of loops with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
ShortInts: TypeAlias = NDArray[np.int32]
Words: TypeAlias = NDArray[np.uint64]
Bytes: TypeAlias = NDArray[np.uint8]
Flags: TypeAlias = NDArray[np.bool_]

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """Compile a function on its first call; cache the code on disk, release the GIL."""
    return cast(_F, numba.njit(cache=True, nogil=True)(function))


def compiled_parallel(function: _F) -> _F:
    """Like `compiled`, with `numba.prange` loops on all cores and reassociated sums."""
    flags = {"reassoc", "contract", "nsz", "arcp"}
    return cast(_F, numba.njit(cache=True, nogil=True, parallel=True, fastmath=flags)(function))
