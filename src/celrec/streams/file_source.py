"""Events from files, watched folders and standard input, and sources by path or address."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams.event_files import FileBatch, opened_file
from celrec.streams.events import Events, EventSource, Offset, Rejected, no_events
from celrec.streams.kafka_source import KafkaSource
from celrec.streams.redis_source import RedisSource
from celrec.streams.text_events import Format, TextEvents


class FileSource(EventSource):
    r"""The events of one file, or of several in the given order.

    Files are csv, tsv or `::`-separated text, JSON lines (`.jsonl`, `.ndjson`, or any text whose
    first line begins with a brace), plain or gzipped, or parquet. They are read in chunks. The
    columns of each file are guessed as by `celrec.read`, from its header or from its first valid
    JSON event.

    Batch boundaries depend on the contents and the size only, and no batch spans two files. A
    file may grow by whole lines after it was read; the next run continues with the new lines.

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
            raise CelrecError("path: no files given; pass at least one")
        self._paths = [Path(path) for path in paths]
        self._roles = roles or Columns()
        for path in self._paths:
            opened_file(path, self._roles)  # report missing files before reading starts

    def __str__(self) -> str:
        more = f" and {len(self._paths) - 1} more" if len(self._paths) > 1 else ""
        return f"{self._paths[0]}{more}"

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """The events after an offset; ends after the last file."""
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
                f"path: file {number + 1} was {name!r} when it was read and is another one now; "
                "give the same files in the same order, new ones at the end, or start a new run"
            )
        return number, offset["place"]


_UNFINISHED = (".tmp", ".part")


class FolderSource(EventSource):
    """The events of the files in a folder, in the order of their names; waits for new files.

    Write a file under a name that begins with a dot or ends in `.tmp` or `.part`, which is
    ignored, and rename it when it is complete. Names must ascend, such as `2024-05-01T12.csv`: a
    file that appears with a name before the current one is not read, and reported as rejected if
    the folder is being watched. Finished files may be removed. A file that cannot be read stops
    the source: fix or remove it, and resume.
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
        """The events after an offset; an empty batch every `poll` seconds without new files."""
        offset = self._begin(size, after)
        finished: str = offset.get("finished", "")
        current, place = offset.get("current"), offset.get("place", {})
        known = {name for name in self._names() if name <= finished}
        while True:
            names = self._names()
            # `current` is set here only if the last run stopped in the middle of that file.
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
        reason = f"the file appeared after {behind!r} was started; give it a later name"
        return tuple(Rejected(str(self._path / name), "", reason) for name in sorted(names))


_CHUNK = 1 << 16


class StandardInput(EventSource):
    """Events from a pipe, as delimited text or JSON lines, until the pipe is closed.

    A pipe cannot be rewound. To resume, pipe in the same events from their beginning; the rows
    before the offset are skipped. Events with another first line are refused.

    The format is inferred from the first line unless `written_as` gives it.
    """

    kind = "standard input"

    def __init__(
        self,
        roles: Columns | None = None,
        *,
        written_as: Format | None = None,
        stream: IO[bytes] | None = None,
        linger: float = 1.0,
    ) -> None:
        super().__init__()
        self._roles, self._format, self._linger = roles or Columns(), written_as, linger
        self._stream = stream

    def __str__(self) -> str:
        return "standard input"

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """The events after an offset; ends with the input."""
        offset = self._begin(size, after)
        events = TextEvents(str(self), self._roles, self._format, offset, size)
        descriptor = (self._stream or sys.stdin).fileno()
        ended = False
        while not ended or events.pending:
            deadline = time.monotonic() + self._linger
            while not ended and events.pending < size:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not select.select([descriptor], [], [], remaining)[0]:
                    break
                if data := os.read(descriptor, _CHUNK):
                    events.feed(data)
                else:
                    events.finish()
                    ended = True
            parsed = events.take()
            self._lateness.add(parsed.frame)
            yield Events(parsed.frame, self._offset(events.place()), parsed.rejected)


_REDIS, _KAFKA = ("redis", "rediss", "unix"), "kafka"


def open_source(
    text: str | Path | Sequence[str | Path],
    roles: Columns | None = None,
    *,
    group: str = "celrec",
) -> EventSource:
    """Open the source with a path or an address.

    Sources are one or several files, a folder to watch, `-` for standard input,
    `redis://host:port/database/STREAM` (or `…?stream=NAME`), and
    `kafka://host:port,host:port/TOPIC`. `group` is the consumer group of the run at a broker;
    use a different one for each run.

    >>> str(open_source("-"))
    'standard input'
    """
    names = [str(text)] if isinstance(text, str | Path) else [str(name) for name in text]
    schemes = [name.partition("://")[0].lower() if "://" in name else "" for name in names]
    if len(names) != 1:
        if any(schemes) or "-" in names or any(Path(name).is_dir() for name in names):
            raise CelrecError("source: several sources must all be files; start a run for each")
        return FileSource(names, roles)
    name, scheme = names[0], schemes[0]
    if name == "-":
        return StandardInput(roles)
    if scheme in _REDIS:
        url, stream = _redis(name)
        return RedisSource(url, stream, roles, group=group)
    if scheme == _KAFKA:
        servers, _, topic = name.partition("://")[2].rstrip("/").rpartition("/")
        if not servers or not topic:
            raise CelrecError("source: no topic in the address; write kafka://host:port/TOPIC")
        return KafkaSource(servers, topic, roles, group=group)
    if scheme:
        raise CelrecError(
            f"source: {scheme}:// is unknown; give a file, a folder, - for standard input, "
            "redis://host:port/database/STREAM or kafka://host:port/TOPIC"
        )
    return FolderSource(name, roles) if Path(name).is_dir() else FileSource(name, roles)


def _redis(text: str) -> tuple[str, str]:
    try:
        address = urlsplit(text)
    except ValueError:  # its text may contain the password
        raise CelrecError("source: not an address; write redis://host:port/0/STREAM") from None
    options = dict(parse_qsl(address.query))
    stream, path = options.pop("stream", ""), address.path
    if not stream and address.scheme != "unix":
        database, _, stream = path.strip("/").partition("/")
        if not stream and not database.isdecimal():
            database, stream = "0", database
        stream, path = unquote(stream), f"/{database}"
    if not stream:
        raise CelrecError("source: no stream in the address; write redis://host:port/0/STREAM")
    query = f"?{urlencode(options)}" if options else ""
    return f"{address.scheme}://{address.netloc}{path}{query}", stream
