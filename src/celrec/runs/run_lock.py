"""One process at a time."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from celrec.errors import CelrecError
from celrec.runtime.file_lock import lock_file

_OWN = {"lock", "rejected.jsonl", "checkpoints", "seen", "journal"}


class RunLock:
    """Keeps other processes from a folder until it is released, or the process ends."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file: IO[bytes] = (folder / "lock").open("ab")
        except OSError as error:
            raise CelrecError(
                f"{folder}: cannot write in it ({error.strerror}); "
                "choose a folder that you may write to"
            ) from error
        try:
            lock_file(self._file, wait=False)
        except OSError as error:
            self._file.close()
            raise CelrecError(
                f"{folder}: another process works on this run; wait for it, or stop it"
            ) from error

    def release(self) -> None:
        """Let others in."""
        self._file.close()


def lock_run(folder: Path) -> RunLock:
    """The lock of a folder that is an online run's, or can be; it is made if it is not there."""
    try:
        others = {path.name for path in folder.iterdir()} - _OWN if folder.exists() else set()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CelrecError(
            f"{folder}: cannot be the folder of a run ({error.strerror}); name another one"
        ) from error
    if others:
        raise CelrecError(f"{folder}: is there and no online run; choose another place for the run")
    return RunLock(folder)
