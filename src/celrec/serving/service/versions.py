"""The version that answers now."""

from __future__ import annotations

import threading

from celrec.serving.service.version import Version
from celrec.training.run_folder import Run


class Versions:
    """Who asks takes `current` once, and is answered by it whatever comes meanwhile.

    A new version is made ready before it takes the place of the old one, which goes when the last
    request that has it is answered. So nobody waits for the change.
    """

    def __init__(self, run: Run, learned: int = 0) -> None:
        self._lock = threading.Lock()
        self.current = Version(1, run, learned)

    def publish(self, run: Run, learned: int = 0) -> None:
        """Let a run answer from now on."""
        with self._lock:
            self.current = Version(self.current.number + 1, run, learned)
