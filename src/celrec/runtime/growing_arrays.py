"""NumPy arrays that grow at the end: in memory, or memory-mapped under a budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from celrec.runtime.memory_budget import MemoryBudget, ScratchFile

_BLOCK = 1 << 16  # rows moved at once


class GrowingRows:
    """A growing array of rows, initialised to zero, in memory or in a memory-mapped file.

    The `budget` decides which; without a budget the rows are in memory. Growth in memory copies
    the rows only if a view of them is alive. Growth in a file never copies.

    >>> rows = GrowingRows(np.dtype(np.float32), (2,), 1)
    >>> rows.grow(3)
    >>> rows.first(2)
    array([[0., 0.],
           [0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        shape: tuple[int, ...] = (),
        rows: int = 0,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._size, self._budget = math.prod(shape), MemoryBudget() if budget is None else budget
        self._file: ScratchFile | None = None
        self.flat: NDArray[Any] = np.zeros(0, dtype)
        """All values as a flat array."""
        self.words = self._bits()
        """`flat` viewed as unsigned integers, so that kernels are compiled for four dtypes only."""
        self._budget.register(self)
        self.grow(rows)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return int(self.flat.nbytes)

    @property
    def mapped(self) -> bool:
        """Whether the rows are in a file."""
        return self._file is not None

    def first(self, rows: int) -> NDArray[Any]:
        """A view of the first `rows` rows."""
        return self.flat[: rows * self._size].reshape(rows, *self.shape)

    def grow(self, rows: int) -> None:
        """Grow to at least `rows` rows; on an error the contents are unchanged."""
        length = rows * self._size
        if length <= len(self.flat):
            return
        del self.words  # a view of `flat`, which would force a copy
        nbytes = length * self.dtype.itemsize
        try:
            if self._file is None and self._budget.allows(nbytes, instead_of=self.nbytes):
                self._resize(length)
            else:
                self._map(nbytes)
        finally:
            self.words = self._bits()

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep only `rows`, given in ascending order, and release the remaining memory."""
        if self._file is None:
            _gather(self.flat, rows, self._size, self.flat)
            del self.words
            self._resize(len(rows) * self._size)
            self.words = self._bits()
            return
        kept = GrowingRows(self.dtype, self.shape, len(rows), self._budget)
        _gather(self.flat, rows, self._size, kept.flat)
        self.flat, self.words, self._file = kept.flat, kept.words, kept._file

    def _resize(self, length: int) -> None:
        if not len(self.flat):  # np.zeros allocates lazily
            self.flat = np.zeros(length, self.dtype)
            return
        try:
            self.flat.resize(length)
        except ValueError:  # a view is alive, so its memory must stay
            other, common = np.zeros(length, self.dtype), min(length, len(self.flat))
            other[:common] = self.flat[:common]
            self.flat = other

    def _map(self, nbytes: int) -> None:
        file = self._file or self._budget.new_file()
        flat = file.first(nbytes).view(self.dtype)
        if self._file is None:
            flat[: len(self.flat)] = self.flat
        self.flat, self._file = flat, file

    def _bits(self) -> NDArray[Any]:
        return self.flat.view(f"u{self.dtype.itemsize}")


def _gather(flat: NDArray[Any], rows: NDArray[np.int64], size: int, kept: NDArray[Any]) -> None:
    """Copy ascending `rows` of `size` values to the front of `kept`, which may be `flat` itself."""
    for start in range(0, len(rows) if size else 0, _BLOCK):
        part = rows[start : start + _BLOCK]
        goal = kept[start * size : (start + len(part)) * size]
        goal.reshape(-1, size)[:] = flat.reshape(-1, size)[part]


class GrowingArray:
    """An array built by appending blocks, never with two copies of the contents in memory.

    Memory for the `expected` length is allocated lazily. Beyond it the buffer is reallocated,
    which remaps large blocks instead of copying them, so it grows by one eighth at a time.

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
        """Return the contents as an array of their exact length, and reset to empty."""
        self._buffer.resize(self._length, refcheck=False)
        contents = self._buffer
        self._buffer, self._length = np.empty(0, contents.dtype), 0
        return contents
