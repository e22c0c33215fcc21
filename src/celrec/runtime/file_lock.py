"""Locks between processes, on open files."""

from __future__ import annotations

import time
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows, where msvcrt locks ranges of bytes instead of files
    fcntl = None  # type: ignore[assignment]

_LOCKED_BYTE = 1 << 40
"""The byte that is locked on Windows. It is beyond the end, so others can still read the file."""
_RETRY_SECONDS = 0.05


def lock_file(file: IO[bytes], *, wait: bool) -> None:
    """Lock an open file for this process, until the file is closed.

    Raises:
        OSError: Another process has the lock, and `wait` is false.

    >>> from tempfile import TemporaryFile
    >>> with TemporaryFile() as file:
    ...     lock_file(file, wait=False)

    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    while True:
        try:
            _lock_byte(file)
        except OSError:
            if not wait:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _lock_byte(file: IO[bytes]) -> None:
    import msvcrt

    locking: Any = msvcrt  # its functions are declared on Windows alone
    position = file.tell()
    file.seek(_LOCKED_BYTE)
    try:
        locking.locking(file.fileno(), locking.LK_NBLCK, 1)
    finally:
        file.seek(position)
