"""What users have seen, on disk."""

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
"""Of each user, so many of the latest events are kept: so that memory is bounded."""
_PAIR = np.dtype("<i4")
_BYTES = 2 * _PAIR.itemsize
_PART = 1 << 20  # events at once


class SeenLog:
    """The folder `seen` of a run: a file of pairs of dense ids, which new ones are put behind.

    So a checkpoint takes no longer the more was seen before. It notes the name of the file, how
    many events of it count, and their checksum; what is beyond was not noted: it will come again.
    Where events have been dropped or ids numbered anew, a new file is begun, and the old one stays
    as long as there is a checkpoint that needs it.

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
        """See `SeenItems` for `latest` and `budget`."""
        self.seen = SeenItems(latest, budget)
        self.damaged: tuple[CelrecError, ...] = ()
        """Why what was noted could not be taken up, if it could not."""
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
        """Go on after what was `noted`; if that is damaged, without it: learning does not need it.

        The ids are those that are `known`.
        """
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
        log._generation = 0  # unless it was tidied up when it was read
        return log

    def write(self) -> dict[str, Any]:
        """See to it that all is on the disk; what a checkpoint has to note."""
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
            self._generation = None  # whatever is in the file now, begin a new one next time
            raise
        self._events, self._crc32 = events, crc32
        noted = {"file": path.name, "events": self._events, "crc32": self._crc32}
        return {**noted, "latest": self.seen.latest}

    def tidy(self, noted: Iterable[Mapping[str, Any] | None]) -> None:
        """Remove files that none of what was noted names."""
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
    """What `SeenLog.write` noted, of ids that are `known`; None if an earlier version did not."""
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
    """The bytes of so many events, or of all there are."""
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
    """Write the dense ids of all events that count, in the order of time; 8 bytes each at most."""
    users, items = seen.events()
    pl.DataFrame({"user": users, "item": items}).write_parquet(folder / _NAME)


def read_seen(folder: Path, known: Interactions) -> SeenItems | None:
    """What `write_seen` wrote of ids that are `known`; None if earlier versions wrote nothing."""
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
