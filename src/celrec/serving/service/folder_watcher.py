"""New versions of a run that others write."""

from __future__ import annotations

import threading
from pathlib import Path

from celrec.errors import CelrecError
from celrec.serving.service.versions import Versions
from celrec.training.checkpoint_folder import CheckpointFolder
from celrec.training.run_folder import load_run


class FolderWatcher:
    """Publishes what stands in a folder when that is replaced by a new training or checkpoint.

    What cannot be read, such as a folder that is being replaced at this moment, is looked at again
    later; meanwhile the old version answers.
    """

    def __init__(self, folder: Path, versions: Versions, seconds: float = 1.0) -> None:
        self._folder, self._versions, self._seconds = folder, versions, seconds
        self._known = _mark(folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watcher", daemon=True)
        self.problem: str | None = None
        """Why the latest version could not be read, in one line."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self._seconds):
            mark = _mark(self._folder)
            if mark in (self._known, None):
                continue
            try:
                self._versions.publish(load_run(self._folder, seen=True))
            except CelrecError as error:
                if _mark(self._folder) == mark:
                    self.problem, self._known = str(error), mark
                continue
            self.problem, self._known = None, mark


def _mark(folder: Path) -> tuple[object, ...] | None:
    """What differs when something else stands there; None if nothing is there now."""
    whole = CheckpointFolder(folder).whole()
    place = whole[0] if whole else folder
    try:
        found = [(place / name).stat() for name in ("config.json", "model.safetensors")]
    except OSError:
        return None
    return (place.name, *((one.st_ino, one.st_mtime_ns, one.st_size) for one in found))
