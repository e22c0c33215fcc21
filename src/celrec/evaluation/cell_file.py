"""Finished cells of an experiment, kept one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celrec.errors import CelrecError
from celrec.runtime.atomic import lock_file

_BEGIN = b'{"cell": '


class CellFile:
    """The results of the cells of an experiment, one line of a file each.

    A cell is the settings of one training, as JSON. Its line is written when it is finished, so
    that an interrupted experiment can be resumed; a partial last line is ignored. Without a path,
    cells are in memory only. `defaults` are settings that older cells lack.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "cells.jsonl")
    >>> CellFile(path).keep({"method": "full", "fold": 1}, {"mse": 0.8})
    >>> CellFile(path).get({"fold": 1, "method": "full"})
    {'mse': 0.8}
    """

    def __init__(self, path: Path | None, defaults: Mapping[str, Any] | None = None) -> None:
        self._path, self._defaults = path, dict(defaults or {})
        self._found: dict[str, dict[str, Any]] = {}
        self._read()

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, cell: Mapping[str, Any]) -> bool:
        return self._key(cell) in self._found

    def get(self, cell: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was found, None if nothing was yet."""
        return self._found.get(self._key(cell))

    def mentions(self, name: str, value: object) -> bool:
        """Whether something was found for a cell that says so."""
        return any(json.loads(key).get(name) == value for key in self._found)

    def find(self, cell: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was found, or is found now."""
        if cell not in self:
            self.keep(cell, make())
        return self._found[self._key(cell)]

    def keep(self, cell: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Write what was found, at once; when it returns, that is on the disk."""
        text = json.dumps({"cell": cell, "found": found})
        if self._path is not None:
            with _writable(self._path), self._path.open("a+b") as file:
                lock_file(file, wait=True)  # others may be writing other cells
                file.truncate(_whole(self._path.read_bytes()))
                file.write(text.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._found[self._key(cell)] = json.loads(text)["found"]

    def _key(self, cell: Mapping[str, Any]) -> str:
        return json.dumps({**self._defaults, **cell}, sort_keys=True)

    def _read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            data = self._path.read_bytes()
            whole = data[: _whole(data)]
            # What a crash cut off is let go, but not somebody's text without an end of line.
            cut = data[len(whole) :]
            lines = (whole if _BEGIN.startswith(cut[: len(_BEGIN)]) else data).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CelrecError(
                f"{self._path}: not a file of cells that can be read; name another file"
            ) from error
        for number, line in enumerate(lines, 1):
            try:
                one = json.loads(line)
                self._found[self._key(one["cell"])] = one["found"]
            except (ValueError, LookupError, TypeError) as error:
                raise CelrecError(
                    f"{self._path}, line {number}: not a cell of an experiment; "
                    "remove the line, or name another file"
                ) from error


def _whole(data: bytes) -> int:
    """How many bytes the lines take that have an end."""
    return data.rfind(b"\n") + 1


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Raise a CelrecError that names the file if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise CelrecError(
            f"{path}: cannot be written ({error.strerror}); name another file, or make room"
        ) from error
