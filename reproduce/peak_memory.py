"""How much memory this process takes at most."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

PROCESS = Path("/proc/self")


class PeakMemory:
    """The largest resident memory within a block: all of the process, with what it held before.

    What the process took earlier and gave back does not count. Known on Linux only.

    >>> with PeakMemory() as peak:
    ...     ones = bytearray(10_000_000)
    >>> peak.nbytes is None or peak.nbytes > 10_000_000
    True
    """

    nbytes: int | None = None

    def __enter__(self) -> PeakMemory:
        try:
            (PROCESS / "clear_refs").write_text("5")  # the peak falls to what is held now
        except OSError:
            return self
        self.nbytes = 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.nbytes is not None:
            told = re.search(r"^VmHWM:\s+(\d+) kB$", (PROCESS / "status").read_text(), re.M)
            self.nbytes = 1024 * int(told[1]) if told else None
