"""How many bytes of what is kept for ids may be in memory; the rest is in mapped files."""

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
    """A file without a name, to be used as memory: whatever ends the process, it is gone then.

    All of it is allocated on the disk before it is mapped. So a full disk is told by an error
    when the file grows, and not by a signal when something is written to it.

    >>> file = ScratchFile()
    >>> some = file.first(2)
    >>> some[:] = 7
    >>> file.first(4)
    array([7, 7, 0, 0], dtype=uint8)
    """

    def __init__(self, folder: Path | None = None) -> None:
        """On the disk of a folder, which is made if need be; None: that of temporary files."""
        self._folder = folder
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                self._handle = os.dup(file.fileno())
        except OSError as error:
            raise self._refusal("nothing can be written there", error) from error
        finalize(self, os.close, self._handle)  # who has it mapped keeps it

    def first(self, length: int) -> NDArray[np.uint8]:
        """Its first bytes, zero until they are written to; it grows if it is shorter.

        What was given before stays valid, and shows the same bytes: none of them is copied.
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
            else:  # macOS: there a hole has to do
                os.ftruncate(self._handle, length)
        except OSError:
            os.ftruncate(self._handle, size)  # part of it may have been allocated
            raise

    def _refusal(self, what: str, error: OSError | OverflowError) -> CelrecError:
        place = tempfile.gettempdir() if self._folder is None else self._folder
        reason = getattr(error, "strerror", None) or error
        return CelrecError(
            f"memory: files in {str(place)!r} have to hold what is beyond it, and {what} "
            f"({reason}); make room on that disk, or allow more memory"
        )


class Held(Protocol):
    """Something that takes bytes, in memory or in a file."""

    @property
    def nbytes(self) -> int:
        """How many."""

    @property
    def mapped(self) -> bool:
        """Whether they are in a file."""


class MemoryBudget:
    """A budget of bytes that several growing arrays share: see `GrowingRows`.

    The rule: an array that is made or grows is in memory if all those in memory, this one
    included, are within the budget then. Else it moves to a file of its own, and stays there. So
    what is in memory never exceeds the budget, and only what moves to a file is copied.

    >>> import numpy as np
    >>> from celrec.runtime.growing_arrays import GrowingRows
    >>> budget = MemoryBudget(budget=100)
    >>> few, many = (GrowingRows(np.dtype(np.int64), (), 6, budget) for _ in range(2))
    >>> budget.held, budget.mapped
    (96, 0)
    >>> many.grow(7)
    >>> budget.held, budget.mapped
    (48, 56)
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        """None: all is in memory. Files lie on the disk of `folder`: see `ScratchFile`."""
        if budget is not None and budget < 0:
            raise CelrecError(f"memory must be a number of bytes, 0 or more, not {budget}")
        self.budget, self._folder = budget, folder
        self._inside: WeakSet[Held] = WeakSet()

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(one.nbytes for one in self._inside if not one.mapped)

    @property
    def mapped(self) -> int:
        """Bytes in files."""
        return sum(one.nbytes for one in self._inside if one.mapped)

    def enter(self, one: Held) -> None:
        """Count something, as long as anybody holds it."""
        self._inside.add(one)

    def admits(self, nbytes: int, *, instead_of: int = 0) -> bool:
        """Whether so many bytes can be in memory, if others that are there go away."""
        return self.budget is None or self.held - instead_of + nbytes <= self.budget

    def file(self) -> ScratchFile:
        """A new one, for what cannot."""
        return ScratchFile(self._folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryBudget:
        """Without a budget: whoever copies what is in a file wants it in memory."""
        return MemoryBudget()


_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}B": base**power
    for power, letter in enumerate("KMGT", 1)
    for kind, base in (("", 1000), ("I", 1024))
}


def byte_size(text: str, argument: str = "memory") -> int:
    """How many bytes a text such as 8GB, 500MB, 1.5GiB or 65536 means.

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
