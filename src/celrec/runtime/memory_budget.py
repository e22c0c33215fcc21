"""NumPy arrays that grow, under a budget: those beyond it are in memory-mapped files."""

from __future__ import annotations

import math
import mmap
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet, finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

from celrec.errors import CelrecError


class ScratchFile:
    """An anonymous memory-mapped file; the operating system deletes it when the process ends.

    Disk space is allocated before the file is mapped. A full disk therefore raises an error
    when the file grows, instead of a SIGBUS when it is written to.

    >>> file = ScratchFile()
    >>> some = file.first(2)
    >>> some[:] = 7
    >>> file.first(4)
    array([7, 7, 0, 0], dtype=uint8)
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Create the file in `folder`, or where temporary files go if it is None."""
        self._folder = folder
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                self._handle = os.dup(file.fileno())
        except OSError as error:
            raise self._refusal("nothing can be written there", error) from error
        finalize(self, os.close, self._handle)  # existing maps stay valid

    def first(self, length: int) -> NDArray[np.uint8]:
        """Map the first `length` bytes, growing the file if needed; new bytes are zero.

        Arrays returned earlier stay valid and share the same bytes.
        """
        if not length:
            return np.zeros(0, np.uint8)
        size = os.fstat(self._handle).st_size
        try:
            if length > size:
                self._allocate(size, length)
            return np.frombuffer(mmap.mmap(self._handle, length), np.uint8)
        except (OSError, OverflowError) as error:
            raise self._refusal(f"no room for {length - size:,} bytes more", error) from error

    def _allocate(self, size: int, length: int) -> None:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._handle, size, length - size)
            else:  # macOS: a sparse file
                os.ftruncate(self._handle, length)
        except OSError:
            os.ftruncate(self._handle, size)  # part of it may have been allocated
            raise

    def _refusal(self, what: str, error: OSError | OverflowError) -> CelrecError:
        place = tempfile.gettempdir() if self._folder is None else self._folder
        reason = getattr(error, "strerror", None) or error
        return CelrecError(
            f"memory: arrays beyond the budget go to files in {str(place)!r}, and {what} "
            f"({reason}); free space on that disk, or allow more memory"
        )


class TrackedArray(Protocol):
    """An array that a `MemoryBudget` counts."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    @property
    def mapped(self) -> bool:
        """Whether they are in a file."""


class MemoryBudget:
    """A memory limit in bytes that several `GrowingRows` share.

    When an array is created or grows, it stays in memory if all arrays in memory, this one
    included, fit in the budget. Otherwise it moves to a file of its own and stays there. Memory
    in use never exceeds the budget, and an array is copied only when it moves to a file.

    >>> import numpy as np
    >>> from celrec.runtime.memory_budget import GrowingRows
    >>> budget = MemoryBudget(budget=100)
    >>> few, many = (GrowingRows(np.dtype(np.int64), (), 6, budget) for _ in range(2))
    >>> budget.memory_bytes, budget.mapped_bytes
    (96, 0)
    >>> many.grow(7)
    >>> budget.memory_bytes, budget.mapped_bytes
    (48, 56)
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        """Limit memory to `budget` bytes (None: no limit), with `ScratchFile`s in `folder`."""
        if budget is not None and budget < 0:
            raise CelrecError(f"memory must be a number of bytes, 0 or more, not {budget}")
        self.budget, self._folder = budget, folder
        self._arrays: WeakSet[TrackedArray] = WeakSet()

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return sum(array.nbytes for array in self._arrays if not array.mapped)

    @property
    def mapped_bytes(self) -> int:
        """Bytes in files."""
        return sum(array.nbytes for array in self._arrays if array.mapped)

    def register(self, array: TrackedArray) -> None:
        """Count an array for as long as it is referenced elsewhere."""
        self._arrays.add(array)

    def allows(self, nbytes: int, *, instead_of: int = 0) -> bool:
        """Whether `nbytes` more fit in memory once `instead_of` bytes are released."""
        return self.budget is None or self.memory_bytes - instead_of + nbytes <= self.budget

    def new_file(self) -> ScratchFile:
        """A file for an array that does not fit."""
        return ScratchFile(self._folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryBudget:
        """Return an unlimited budget: copies of mapped arrays are in memory."""
        return MemoryBudget()


_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}B": base**power
    for power, letter in enumerate("KMGT", 1)
    for kind, base in (("", 1000), ("I", 1024))
}


def byte_size(text: str, argument: str = "memory") -> int:
    """Parse a size in bytes such as 8GB, 500MB, 1.5GiB or 65536.

    KB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB and TiB of 1,024.

    >>> byte_size("1.5GiB"), byte_size("500 mb"), byte_size("65536")
    (1610612736, 500000000, 65536)
    """
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise CelrecError(
            f"{argument} must be a number of bytes such as 8GB, 500MB, 1.5GiB or 65536, "
            f"not {text!r}"
        )
    return int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit


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
