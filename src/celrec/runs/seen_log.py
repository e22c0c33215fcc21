"""The seen items of users on disk."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError, first_line
from celrec.runtime.atomic import flush
from celrec.runtime.memory_budget import MemoryBudget

LATEST_SEEN = 1_000
"""The number of latest events stored per user, which bounds memory."""
_PAIR = np.dtype("<i4")
_BYTES = 2 * _PAIR.itemsize
_PART = 1 << 20  # events at once


class SeenLog:
    """The folder `seen` of a run: a file of pairs of dense ids, to which new ones are appended.

    A checkpoint notes the file, its number of events and their checksum; later events are learned
    again after a crash. When events were removed or ids renumbered, a new file is begun; the old
    one stays while a checkpoint needs it.

    >>> from tempfile import mkdtemp
    >>> log = SeenLog(Path(mkdtemp()))
    >>> log.seen.add([0, 1], [5, 7])
    >>> log.write()["events"]
    2
    >>> log.seen.add([0], [7])
    >>> log.write()
    {'file': '000001.bin', 'events': 3, 'crc32': 3479984792, 'latest': None}
    """

    def __init__(
        self, run: Path, latest: int | None = None, budget: MemoryBudget | None = None
    ) -> None:
        self.seen = SeenItems(latest, budget)
        self.damaged: tuple[CelrecError, ...] = ()
        """Why the noted file could not be read, if it could not."""
        self._folder = run / "seen"
        self._number = self._events = self._crc32 = 0
        self._generation: int | None = None

    @classmethod
    def resume(
        cls,
        run: Path,
        noted: Mapping[str, Any] | None,
        known: Interactions,
        latest: int | None,
        budget: MemoryBudget | None = None,
    ) -> SeenLog:
        """Continue after what a checkpoint `noted`, with `known` ids; empty if it is damaged."""
        log = cls(run, latest, budget)
        if noted is None:  # by an earlier version
            return log
        log._number = int(noted["file"].partition(".")[0])
        try:
            log.seen = read_seen_log(run, noted, known, budget) or log.seen
        except CelrecError as error:
            log.damaged = (error,)
            return log
        log._events, log._crc32 = noted["events"], noted["crc32"]
        log._generation = 0  # unless it was compacted while reading
        return log

    def write(self) -> dict[str, Any]:
        """Flush all events to disk; return what a checkpoint has to note."""
        new = self.seen.generation != self._generation
        if new:
            self._number += 1
            self._events, self._crc32, self._generation = 0, 0, self.seen.generation
        path = self._folder / f"{self._number:06d}.bin"
        events, crc32 = len(self.seen), self._crc32
        try:
            self._folder.mkdir(exist_ok=True)
            with path.open("wb" if new else "r+b") as file:
                file.seek(self._events * _BYTES)
                file.truncate()
                for start in range(self._events, events, _PART):
                    pairs = np.stack(self.seen.stored(start, start + _PART), 1)
                    data = pairs.astype(_PAIR).tobytes()
                    file.write(data)
                    crc32 = zlib.crc32(data, crc32)
                file.flush()
                os.fsync(file.fileno())
            for folder in (self._folder, self._folder.parent):
                flush(folder)
        except OSError:
            self._generation = None  # begin a new file next time
            raise
        self._events, self._crc32 = events, crc32
        noted = {"file": path.name, "events": self._events, "crc32": self._crc32}
        return {**noted, "latest": self.seen.latest}

    def tidy(self, noted: Iterable[Mapping[str, Any] | None]) -> None:
        """Remove the files that no checkpoint needs."""
        needed = {one["file"] for one in noted if one is not None}
        for path in self._folder.glob("*.bin"):
            if path.name not in needed:
                path.unlink(missing_ok=True)


def read_seen_log(
    run: Path,
    noted: Mapping[str, Any] | None,
    known: Interactions,
    budget: MemoryBudget | None = None,
) -> SeenItems | None:
    """The events that `SeenLog.write` noted; None if an earlier version noted none."""
    if noted is None:
        return None
    path, seen = run / "seen" / noted["file"], SeenItems(noted["latest"], budget)
    try:
        crc32 = 0
        for data in _parts(path, noted["events"]):
            crc32 = zlib.crc32(data, crc32)
        if path.stat().st_size < noted["events"] * _BYTES or crc32 != noted["crc32"]:
            raise CelrecError(f"{path}: damaged, the checksum differs; do without (--with-seen)")
        for data in _parts(path, noted["events"]):
            users, items = np.frombuffer(data, _PAIR).reshape(-1, 2).T
            _add_known(seen, users, items, known, path)
    except OSError as error:
        raise CelrecError(
            f"{path}: what was seen cannot be read ({error.strerror}); do without (--with-seen)"
        ) from error
    return seen


def _add_known(
    seen: SeenItems, users: ArrayLike, items: ArrayLike, known: Interactions, path: Path
) -> None:
    limits = ((users, known.num_users), (items, known.num_items))
    if any(np.max(ids, initial=-1) >= size for ids, size in limits):
        raise CelrecError(f"{path}: damaged, it has unknown ids; train again, or use --with-seen")
    seen.add(users, items)


def _parts(path: Path, events: int) -> Iterator[bytes]:
    """The bytes of up to `events` events, in parts."""
    with path.open("rb") as file:
        for start in range(0, events, _PART):
            yield file.read(min(_PART, events - start) * _BYTES)


_NAME = "seen.parquet"


def seen_in(log: Interactions) -> SeenItems:
    """What each user of a log has seen."""
    seen = SeenItems()
    if log.timestamp is None:
        seen.add(log.user, log.item)
    else:
        order = np.argsort(log.timestamp, kind="stable")
        seen.add(log.user[order], log.item[order])
    return seen


def write_seen(folder: Path, seen: SeenItems) -> None:
    """Write the dense ids of all counted events in chronological order."""
    users, items = seen.events()
    pl.DataFrame({"user": users, "item": items}).write_parquet(folder / _NAME)


def read_seen(folder: Path, known: Interactions) -> SeenItems | None:
    """The events that `write_seen` wrote; None if an earlier version wrote none."""
    path = folder / _NAME
    if not path.is_file():
        return None
    seen = SeenItems()
    try:
        pairs = pl.read_parquet(path)
        users, items = (pairs.get_column(name).to_numpy() for name in ("user", "item"))
        _add_known(seen, users, items, known, path)
    except CelrecError:
        raise
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise CelrecError(f"{path}: damaged ({first_line(error)}); train again") from error
    return seen
