"""Loops compiled to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F) -> _F:
    """`function` compiled when it is first called, cached on disk, releasing the GIL."""
    return cast(_F, numba.njit(cache=True, nogil=True)(function))


def compiled_parallel(function: _F) -> _F:
    """The same with `numba.prange` loops on all cores, and sums in any order."""
    flags = {"reassoc", "contract", "nsz", "arcp"}
    return cast(_F, numba.njit(cache=True, nogil=True, parallel=True, fastmath=flags)(function))
