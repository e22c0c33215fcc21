"""Atomic writes, where a file or folder appears complete or not at all, and file locks."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from celrec.errors import CelrecError


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` when the block succeeds.

    Readers see the old file or the new one, never a partial one: the temporary file is
    flushed to disk before the rename. It is removed if the block raises.
    """
    with _writable(path.parent):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        flush(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        flush(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `path` when the block succeeds.

    An existing folder at `path` is replaced.
    """
    with _writable(path.parent):
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        for file in temporary.iterdir():
            flush(file)
        flush(temporary)
        temporary.chmod(0o755)
        if path.exists():
            retired = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
            path.replace(retired / path.name)
            temporary.replace(path)
            shutil.rmtree(retired)
        else:
            temporary.replace(path)
        flush(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise CelrecError(
            f"cannot write in folder {str(folder)!r} ({error.strerror}); "
            "choose a folder that you may write to"
        ) from error


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
