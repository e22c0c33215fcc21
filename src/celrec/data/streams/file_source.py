"""Events from files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from celrec.data.columns import Columns
from celrec.data.streams._opened_file import opened_file
from celrec.data.streams.event_source import EventSource
from celrec.data.streams.events import Events, Offset
from celrec.errors import CelrecError


class FileSource(EventSource):
    r"""The events of one file, or of several in the given order.

    Files may be csv, tsv or `::`-separated text, JSON lines (`.jsonl`,
    `.ndjson`, or any text whose first line begins with a brace), plain or
    gzipped, or parquet. They are read in pieces. Each has columns of its own,
    guessed as `celrec.read` does, from the header or from the first valid JSON event.

    How the events are cut into batches depends on the contents and the size
    alone, and no batch reaches over the end of a file. A file may grow by whole lines
    after it was read: the next run goes on with the new ones.

    >>> from pathlib import Path; from tempfile import mkdtemp
    >>> log = Path(mkdtemp(), "log.csv")
    >>> rows = ["user,item,rating,time", "1,a,5,10", "2,b,3,12", "1,b,oops,13", "3,a,2,11"]
    >>> _ = log.write_text("\n".join(rows))
    >>> source = FileSource(log)
    >>> batches = list(source.batches(2))
    >>> [batch.frame["user"].to_list() for batch in batches], source.late
    ([['1', '2'], ['3']], 1)
    >>> [batch.frame["user"].to_list() for batch in source.batches(2, batches[0].offset)]
    [['3']]
    """

    kind = "files"

    def __init__(
        self, path: str | Path | Sequence[str | Path], roles: Columns | None = None
    ) -> None:
        super().__init__()
        paths = [path] if isinstance(path, str | Path) else list(path)
        if not paths:
            raise CelrecError("path: no files given; name one at least")
        self._paths = [Path(path) for path in paths]
        self._roles = roles or Columns()
        for path in self._paths:
            opened_file(path, self._roles)  # a missing one is told before hours of reading

    def __str__(self) -> str:
        more = f" and {len(self._paths) - 1} more" if len(self._paths) > 1 else ""
        return f"{self._paths[0]}{more}"

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """See `EventSource`; ends after the last file."""
        offset = self._begin(size, after)
        first, place = self._find(offset)
        for number in range(first, len(self._paths)):
            path = self._paths[number]
            for batch in opened_file(path, self._roles).batches(size, place):
                self._lateness.add(batch.frame)
                where = {"file": number, "name": path.name, "place": batch.place}
                yield Events(batch.frame, self._offset(where), batch.rejected)
            place = {}

    def _find(self, offset: Offset) -> tuple[int, Offset]:
        if not offset:
            return 0, {}
        number, name = offset["file"], offset["name"]
        if number >= len(self._paths) or self._paths[number].name != name:
            raise CelrecError(
                f"path: file {number + 1} was {name!r} when it was read and now is not; "
                "give the same files in the same order, new ones at the end, or start a new run"
            )
        return number, offset["place"]
