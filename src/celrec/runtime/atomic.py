"""Writing files and folders whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celrec.errors import CelrecError


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block succeeds.

    A reader sees the old file or the new one, never a part: the temporary file
    is flushed to the disk before the rename, and removed if the block fails.
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
    """A temporary folder beside `path` that becomes `path` when the block succeeds.

    A folder that already stands at `path` is replaced.
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
    """Have a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
