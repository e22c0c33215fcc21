"""The folder of an online run: checkpoints, rejected events, and a lock."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NamedTuple

import polars as pl
from safetensors import SafetensorError

from celrec.errors import CelrecError, first_line
from celrec.runtime.atomic import atomic_folder, lock_file
from celrec.streams.events import Rejected

FORMAT = 1
_KEPT = 2
_MANIFEST = "checkpoint.json"
_NAME = re.compile(r"\d{12,}(-\d{6})?")
_CHUNK = 1 << 22


class FoundCheckpoint(NamedTuple):
    """A whole checkpoint, with verified files."""

    folder: Path
    about: dict[str, Any]
    """The notes that were written with it."""
    damaged: tuple[CelrecError, ...]
    """The errors of later, damaged ones."""


class CheckpointFolder:
    """The folder `checkpoints` of a run: a folder for each checkpoint, named by its events.

    A checkpoint is written under a hidden name, flushed to disk and renamed. Only then are older
    ones removed, except for the latest two. `checkpoint.json` has the checksums of all files.

    >>> from tempfile import mkdtemp
    >>> checkpoints = CheckpointFolder(Path(mkdtemp()))
    >>> for events in (0, 500, 1000):
    ...     with checkpoints.writing(events, {"offset": events}) as folder:
    ...         _ = (folder / "state").write_text("all that is known")
    >>> [folder.name for folder in checkpoints.whole()]
    ['000000001000', '000000000500']
    >>> checkpoints.latest().about
    {'offset': 1000}
    """

    def __init__(self, run: Path) -> None:
        self._run, self.path = run, run / "checkpoints"

    def whole(self) -> list[Path]:
        """The complete checkpoints, latest first."""
        if not self.path.is_dir():
            return []
        found = (path for path in self.path.iterdir() if _NAME.fullmatch(path.name))
        return sorted(found, key=_number, reverse=True)

    @contextmanager
    def writing(self, events: int, about: dict[str, Any]) -> Iterator[Path]:
        """A folder for files; when the block succeeds, it is the latest checkpoint.

        `about`, in JSON values as of the end of the block, is noted with it.
        """
        try:
            with atomic_folder(self._free(events)) as folder:
                yield folder
                files = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
                content = {"format": FORMAT, "about": about, "files": files}
                content["crc32"] = content_checksum(content)
                (folder / _MANIFEST).write_text(json.dumps(content))
            for old in self.whole()[_KEPT:]:
                shutil.rmtree(old)
        except (CelrecError, OSError, SafetensorError, pl.exceptions.PolarsError) as error:
            problem = first_line(getattr(error, "strerror", None) or error)
            raise CelrecError(
                f"{self.path}: cannot write a checkpoint ({problem}); earlier ones are kept; "
                "make room, and go on with the run"
            ) from error

    def noted(self) -> list[dict[str, Any]]:
        """The notes of all complete checkpoints; damaged notes are skipped."""
        found = []
        for folder in self.whole():
            with suppress(OSError, LookupError, TypeError, ValueError):
                found.append(dict(json.loads((folder / _MANIFEST).read_bytes())["about"]))
        return found

    def latest(self) -> FoundCheckpoint | None:
        """The latest checkpoint that is not damaged; None if there is none at all."""
        damaged: list[CelrecError] = []
        for folder in self.whole():
            try:
                about = _verified(folder)
            except _DamagedError as error:
                if not folder.exists():  # removed by a running process
                    return self.latest()
                damaged.append(error)
            else:
                return FoundCheckpoint(folder, about, tuple(damaged))
        if damaged:
            raise CelrecError(f"{damaged[0]}; no earlier checkpoint is left; start a new run")
        return None

    def tidy(self, latest: Path | None = None) -> None:
        """Remove incomplete checkpoints; rename those after `latest`, which are damaged.

        Only the writing process may call it.
        """
        if not self.path.is_dir():
            return
        for path in self.path.iterdir():
            if path.name.startswith("."):
                shutil.rmtree(path)
        for path in self.whole():
            if latest is None or path == latest:
                return
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)

    def _free(self, events: int) -> Path:
        """A name that sorts after all others with this number of events."""
        same = [path for path in self.whole() if _number(path)[0] == events]
        more = f"-{_number(same[0])[1] + 1:06d}" if same else ""
        return self.path / f"{events:012d}{more}"


class _DamagedError(CelrecError):
    """A checkpoint is damaged."""


def _number(path: Path) -> tuple[int, int]:
    events, _, again = path.name.partition("-")
    return int(events), int(again or 0)


def _verified(folder: Path) -> dict[str, Any]:
    """The notes of a checkpoint; an error if one of its files is damaged."""
    manifest = folder / _MANIFEST
    try:
        content = json.loads(manifest.read_bytes())
        expected, files, about = content["format"], content["files"], content["about"]
        if content.pop("crc32") != content_checksum(content):
            raise ValueError("the checksum differs")
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        problem = first_line(getattr(error, "strerror", None) or error)
        raise _DamagedError(f"{manifest}: damaged ({problem})") from error
    if expected != FORMAT:
        raise CelrecError(f"{manifest}: written in format {expected}, expected {FORMAT}")
    for name, checksum in files.items():
        try:
            same = _checksum(folder / name) == checksum
        except OSError as error:
            raise _DamagedError(f"{folder / name}: damaged ({error.strerror})") from error
        if not same:
            raise _DamagedError(f"{folder / name}: damaged, the checksum differs")
    noted: dict[str, Any] = about
    return noted


def _checksum(path: Path) -> str:
    crc = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            crc = zlib.crc32(data, crc)
    return f"{crc:08x}"


def content_checksum(content: dict[str, Any]) -> str:
    """The checksum of what a manifest says, as hexadecimal digits."""
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


_OWN = {"lock", "rejected.jsonl", "checkpoints", "seen", "journal"}


class RunLock:
    """Locks a folder until it is released or the process ends."""

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
        """Release the lock."""
        self._file.close()


def lock_run(folder: Path) -> RunLock:
    """The lock of a folder of an online run, which is created if it is missing."""
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


class RejectedFile:
    r"""Rejected events as JSON lines (place, raw, reason); no file exists before the first.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "rejected.jsonl")
    >>> rejected = RejectedFile(path, 0)
    >>> rejected.add([Rejected("log, line 7", "u1,,5", "no item id")])
    >>> rejected.flush(), path.read_text()
    (65, '{"place": "log, line 7", "raw": "u1,,5", "reason": "no item id"}\n')
    >>> rejected.close()
    """

    def __init__(self, path: Path, length: int) -> None:
        """Truncate the file to `length` bytes, since later events come again."""
        self._path = path
        self._file: IO[bytes] | None = None
        try:
            if path.exists() and path.stat().st_size > length:
                os.truncate(path, length)
        except OSError as error:
            raise self._refusal(error) from error

    def add(self, rejected: Iterable[Rejected]) -> None:
        """Append events."""
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
        """Flush to disk; return the length of the file."""
        try:
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
            return self._path.stat().st_size if self._path.exists() else 0
        except OSError as error:
            raise self._refusal(error) from error

    def close(self) -> None:
        """Close the file; events that were not flushed come again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _refusal(self, error: OSError) -> CelrecError:
        return CelrecError(
            f"{self._path}: cannot write rejected events ({error.strerror}); make room, then go on"
        )
