"""Bytes on the disk that nobody else sees."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from weakref import finalize

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
