"""A numpy array that grows at its end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class GrowingArray:
    """Appends blocks without ever holding the contents twice.

    Room for the `expected` length costs nothing until it is written to. Beyond
    that the buffer is reallocated in place, which remaps large blocks instead
    of copying them; that is so cheap that it grows by an eighth only.

    >>> numbers = GrowingArray(np.int32)
    >>> numbers.append(np.array([1, 2]))
    >>> numbers.append(np.array([3]))
    >>> numbers.finish()
    array([1, 2, 3], dtype=int32)
    """

    def __init__(self, dtype: DTypeLike, expected: int = 0) -> None:
        self._buffer: NDArray[Any] = np.empty(max(expected, 1024), dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, values: NDArray[Any]) -> None:
        """Add `values` at the end."""
        needed = self._length + len(values)
        if needed > len(self._buffer):
            self._buffer.resize(max(needed, len(self._buffer) * 9 // 8), refcheck=False)
        self._buffer[self._length : needed] = values
        self._length = needed

    def finish(self) -> NDArray[Any]:
        """The contents as an array of their exact length; the growing array is then empty."""
        self._buffer.resize(self._length, refcheck=False)
        contents = self._buffer
        self._buffer, self._length = np.empty(0, contents.dtype), 0
        return contents
