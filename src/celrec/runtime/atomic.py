"""Atomic writes: a file or folder appears complete, or not at all."""

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
