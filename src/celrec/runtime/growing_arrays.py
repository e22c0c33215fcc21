"""Arrays that grow at their end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from celrec.runtime.memory_budget import MemoryBudget, ScratchFile

_PART = 1 << 16  # rows at once, where some are moved


class GrowingRows:
    """Rows of numbers, all zero at first, to which more can be added: in memory or in a file.

    A `budget` tells which; without one they are in memory. There growth copies only if somebody
    holds a view, and in a file never.

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
        """All numbers in one row."""
        self.words = self._bits()
        """The same as unsigned words, so that loops are compiled for four dtypes only."""
        self._budget.enter(self)
        self.grow(rows)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return int(self.flat.nbytes)

    @property
    def mapped(self) -> bool:
        """Whether they are in a file."""
        return self._file is not None

    def first(self, rows: int) -> NDArray[Any]:
        """The first `rows` of them, as a view."""
        return self.flat[: rows * self._size].reshape(rows, *self.shape)

    def grow(self, rows: int) -> None:
        """Make room for at least `rows`; an error leaves all as it was."""
        length = rows * self._size
        if length <= len(self.flat):
            return
        del self.words  # this view too
        nbytes = length * self.dtype.itemsize
        try:
            if self._file is None and self._budget.admits(nbytes, instead_of=self.nbytes):
                self._resize(length)
            else:
                self._map(nbytes)
        finally:
            self.words = self._bits()

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Let only these remain, which ascend, in their order; all other room is given back."""
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
        if not len(self.flat):  # fresh memory is not touched before it is used
            self.flat = np.zeros(length, self.dtype)
            return
        try:
            self.flat.resize(length)
        except ValueError:  # the memory of a view must not go away
            other, common = np.zeros(length, self.dtype), min(length, len(self.flat))
            other[:common] = self.flat[:common]
            self.flat = other

    def _map(self, nbytes: int) -> None:
        file = self._file or self._budget.file()
        flat = file.first(nbytes).view(self.dtype)
        if self._file is None:
            flat[: len(self.flat)] = self.flat
        self.flat, self._file = flat, file

    def _bits(self) -> NDArray[Any]:
        return self.flat.view(f"u{self.dtype.itemsize}")


def _gather(flat: NDArray[Any], rows: NDArray[np.int64], size: int, kept: NDArray[Any]) -> None:
    """Put `rows` of `size` numbers at the front of `kept`, which may be `flat`: they ascend."""
    for start in range(0, len(rows) if size else 0, _PART):
        part = rows[start : start + _PART]
        goal = kept[start * size : (start + len(part)) * size]
        goal.reshape(-1, size)[:] = flat.reshape(-1, size)[part]


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
