"""A limit on the memory of growing arrays; arrays beyond it go to memory-mapped files."""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet, finalize

import numpy as np
from numpy.typing import NDArray

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
    >>> from celrec.runtime.growing_arrays import GrowingRows
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
