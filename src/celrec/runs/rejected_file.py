"""Events that could not be used, for people to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from celrec.errors import CelrecError
from celrec.streams.events import Rejected


class RejectedFile:
    r"""A file of JSON lines: place, raw and reason of each event. There is none before the first.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "rejected.jsonl")
    >>> rejected = RejectedFile(path, 0)
    >>> rejected.add([Rejected("log, line 7", "u1,,5", "no item id")])
    >>> rejected.flush(), path.read_text()
    (65, '{"place": "log, line 7", "raw": "u1,,5", "reason": "no item id"}\n')
    >>> rejected.close()
    """

    def __init__(self, path: Path, length: int) -> None:
        """What the file holds beyond `length` bytes is cut off: it will come again."""
        self._path = path
        self._file: IO[bytes] | None = None
        try:
            if path.exists() and path.stat().st_size > length:
                os.truncate(path, length)
        except OSError as error:
            raise self._refusal(error) from error

    def add(self, rejected: Iterable[Rejected]) -> None:
        """Write some more."""
        lines = [json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in rejected]
        if not lines:
            return
        try:
            if self._file is None:
                self._file = self._path.open("ab")
            self._file.write("".join(lines).encode(errors="backslashreplace"))
        except OSError as error:
            raise self._refusal(error) from error

    def flush(self) -> int:
        """See to it that all is on the disk; the length of the file."""
        try:
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
            return self._path.stat().st_size if self._path.exists() else 0
        except OSError as error:
            raise self._refusal(error) from error

    def close(self) -> None:
        """Let go of the file; what was not flushed need not be in it, for it will come again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _refusal(self, error: OSError) -> CelrecError:
        return CelrecError(
            f"{self._path}: cannot write rejected events ({error.strerror}); make room, then go on"
        )
