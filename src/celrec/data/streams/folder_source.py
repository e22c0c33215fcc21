"""Events from files that appear in a folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from celrec.data.columns import Columns
from celrec.data.streams._event_file import FileBatch
from celrec.data.streams._opened_file import opened_file
from celrec.data.streams.event_source import EventSource
from celrec.data.streams.events import Events, Offset, no_events
from celrec.data.streams.rejected import Rejected
from celrec.errors import CelrecError

_UNFINISHED = (".tmp", ".part")


class FolderSource(EventSource):
    """The events of the files in a folder, in order of their names; waits for more, and never ends.

    A file is read once, from its beginning, as soon as it has its name. Write it under a
    name that begins with a dot or ends in `.tmp` or `.part`, which is ignored,
    and rename it when it is complete. Give later files later names, such as
    `2024-05-01T12.csv`: one that appears behind the last finished file is not
    read, and reported as rejected. Only one that appears while the folder is
    being watched is noticed. Finished files may be removed. A file that cannot be
    read at all stops the source: mend or remove it, and resume.
    """

    kind = "folder"

    def __init__(
        self, path: str | Path, roles: Columns | None = None, *, poll: float = 0.5
    ) -> None:
        super().__init__()
        self._path, self._roles, self._poll = Path(path), roles or Columns(), poll
        self._names()

    def __str__(self) -> str:
        return str(self._path)

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """See `EventSource`; yields no rows every `poll` seconds while there is nothing new."""
        offset = self._begin(size, after)
        finished: str = offset.get("finished", "")
        current, place = offset.get("current"), offset.get("place", {})
        known = {name for name in self._names() if name <= finished}
        while True:
            names = self._names()
            # Here a file is current only if it was left in the middle; what lies before it is new.
            passed = {name for name in names if name <= finished or name < (current or "")}
            missed = self._missed(passed - known, current or finished)
            known = names
            if current is None:
                current = min((name for name in names if name > finished), default=None)
            if current is None:
                time.sleep(self._poll)
                yield Events(no_events(), self._offset({"finished": finished}), missed)
                continue
            if missed:
                where = {"finished": finished, "current": current, "place": place}
                yield Events(no_events(), self._offset(where), missed)
            yield from self._file(current, size, place, finished)
            finished, current, place = current, None, {}

    def _file(self, name: str, size: int, place: Offset, finished: str) -> Iterator[Events]:
        """The events of one file; the offset of the last ones says that it is finished."""
        waiting: FileBatch | None = None
        batches = opened_file(self._path / name, self._roles).batches(size, place)
        try:
            for batch in batches:
                if waiting is not None:
                    where = {"finished": finished, "current": name, "place": waiting.place}
                    yield self._events(waiting, where)
                waiting = batch
        except CelrecError:
            if waiting is not None:
                where = {"finished": finished, "current": name, "place": waiting.place}
                yield self._events(waiting, where)
            raise
        last = waiting or FileBatch(no_events(), (), {})
        yield self._events(last, {"finished": name})

    def _events(self, batch: FileBatch, where: Offset) -> Events:
        self._lateness.add(batch.frame)
        return Events(batch.frame, self._offset(where), batch.rejected)

    def _names(self) -> set[str]:
        try:
            return {
                path.name
                for path in self._path.iterdir()
                if not path.name.startswith(".")
                and not path.name.endswith(_UNFINISHED)
                and path.is_file()
            }
        except OSError as error:
            raise CelrecError(f"{self._path}: cannot watch it ({error.strerror})") from error

    def _missed(self, names: set[str], behind: str) -> tuple[Rejected, ...]:
        reason = f"the file appeared when {behind!r} had been begun; give it a later name"
        return tuple(Rejected(str(self._path / name), "", reason) for name in sorted(names))
