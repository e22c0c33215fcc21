"""A consumer group of a Redis stream, and the entries of such streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from celrec.errors import CelrecError, first_line
from celrec.streams.events import BrokerUnavailable
from celrec.streams.fields import json_objects

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes] | None]
"""The id and the fields; None for an entry that was removed from the stream."""

Number: TypeAlias = tuple[int, int]
"""An id as a comparable pair: a time, and a sequence number within it."""

_WHOLE = (b"json", b"event")  # names of a field with a JSON object


def number_of(entry_id: str | bytes) -> Number:
    """Parse an id to a comparable pair.

    >>> number_of("1526919030474-55") < number_of("1526919030474-123")
    True
    """
    moment, _, sequence = (
        entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    ).partition("-")
    return int(moment), int(sequence or 0)


def entry_objects(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The event of each entry; invalid entries give an empty event and a problem by row.

    >>> entry_objects([(b"1-0", {b"user": b"7"}), (b"2-0", {b"json": b'{"user": 7}'})])
    ([{'user': '7'}, {'user': 7}], {})
    """
    events: list[dict[str, Any]] = [{}] * len(entries)
    problems = {}
    packed = {}
    for row, (_, fields) in enumerate(entries):
        if not fields:
            problems[row] = "the entry was removed from the stream before it was read"
        elif len(fields) == 1 and (name := next(iter(fields))) in _WHOLE:
            packed[row] = fields[name]
        else:
            try:
                events[row] = {name.decode(): value.decode() for name, value in fields.items()}
            except UnicodeDecodeError:
                problems[row] = "not UTF-8 text"
    if packed:
        objects, wrong = json_objects(list(packed.values()))
        rows = list(packed)
        for row, event in zip(rows, objects, strict=True):
            events[row] = event
        problems |= {rows[number]: reason for number, reason in wrong.items()}
    return events, problems


def written(entry: Entry) -> str:
    """The fields of an entry as readable JSON."""
    fields = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in (entry[1] or {}).items()
    }
    return json.dumps(fields, ensure_ascii=False)


_DEAD_AFTER = 60_000  # milliseconds
_AT_ONCE = 1000
_SLACK = 5.0  # seconds added to the blocking time for the socket timeout


class NoGroup(Exception):  # noqa: N818
    """The group does not exist, for example after a restart of a server without persistence."""


class StreamInfo(NamedTuple):
    """The state of a stream."""

    first: bytes | None
    """The lowest id, None if the stream is empty."""
    length: int
    added: int | None
    """The number of entries ever added; None with Redis 6."""


class RedisGroup:
    """A consumer of a group; failures become BrokerUnavailable, NoGroup or CelrecError."""

    def __init__(
        self, url: str, stream: str, group: str, consumer: str, *, longest_wait: float
    ) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise CelrecError(
                "reading Redis streams needs the redis package: pip install 'celrec[stream]'"
            ) from error
        self._errors = redis.exceptions
        self._stream, self._group, self._consumer = stream, group, consumer
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                protocol=2,
                socket_timeout=longest_wait + _SLACK,
                socket_connect_timeout=_SLACK,
                # Automatic retries of a read would lose the entries of the first answer.
                retry=Retry(NoBackoff(), 0),
            )
            pool = self._client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # raises if an option is unknown
        except (ValueError, TypeError):  # its text may contain a part of the password
            raise CelrecError(
                "url: not an address of Redis, or with unknown options; write "
                "redis://host:port/database, and special characters in a password as %XX"
            ) from None
        settings = pool.connection_kwargs
        self._secret: str = settings.get("password") or ""
        host = settings.get("path") or f"{settings.get('host')}:{settings.get('port', 6379)}"
        self._name = f"stream {stream!r} of Redis at {host}, database {settings.get('db', 0)}"

    def __str__(self) -> str:
        return self._name

    def open(self, at: str, entries: int | None) -> None:
        """Create the group at the id `at`, unless it exists.

        `entries` is the number of entries added to the stream up to there, if known.
        """
        with self._translated_errors():
            try:
                self._client.xgroup_create(
                    self._stream, self._group, id=at, mkstream=True, entries_read=entries
                )
            except self._errors.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    def take_over(self) -> list[Entry]:
        """Claim the pending entries of idle consumers; return those removed from the stream."""
        removed_entries: list[Entry] = []
        start: bytes | None = None
        with self._translated_errors():
            while start != b"0-0":
                start, _, *removed = self._client.xautoclaim(  # Redis 6 returns no removed ids
                    *(self._stream, self._group, self._consumer),
                    _DEAD_AFTER,
                    start_id=start or "0-0",
                    count=_AT_ONCE,
                )
                removed_entries += [(entry_id, None) for ids in removed for entry_id in ids]
        return removed_entries

    def wind_to(self, last: str, entries: int | None) -> None:
        """Set the group's position to `last`, so that later entries are delivered again."""
        if self.delivered()[0] != last:
            with self._translated_errors():
                self._client.xgroup_setid(self._stream, self._group, last, entries_read=entries)

    def delivered(self) -> tuple[str, int | None]:
        """The last delivered id of the group, and the number of entries up to it."""
        with self._translated_errors():
            groups = self._client.xinfo_groups(self._stream)
        found = [group for group in groups if group["name"] == self._group.encode()]
        if not found:
            raise NoGroup
        last: str = found[0]["last-delivered-id"].decode()
        if number_of(last) > (0, 0):
            return last, found[0].get("entries-read")
        info = self.info()
        return last, None if info.added is None else info.added - info.length

    def info(self) -> StreamInfo:
        """The state of the stream."""
        with self._translated_errors():
            reply = self._client.xinfo_stream(self._stream)
        first = reply["first-entry"]
        return StreamInfo(first[0] if first else None, reply["length"], reply.get("entries-added"))

    def pending(self, after: str | bytes, count: int) -> list[Entry]:
        """Entries delivered to this consumer and not acknowledged, in order."""
        return self._read(after, count, None)

    def fresh(self, count: int, seconds: float) -> list[Entry]:
        """Undelivered entries; waits up to `seconds` for the first."""
        return self._read(">", count, max(int(seconds * 1000), 1))

    def acknowledge(self, numbers: Sequence[Number]) -> None:
        """Acknowledge these entries of this consumer."""
        with self._translated_errors():
            for start in range(0, len(numbers), _AT_ONCE):
                ids = [f"{moment}-{number}" for moment, number in numbers[start : start + _AT_ONCE]]
                self._client.xack(self._stream, self._group, *ids)

    def acknowledge_all(self, upto: str) -> None:
        """Acknowledge the pending entries of all consumers up to an id."""
        with self._translated_errors():
            while pending := self._client.xpending_range(
                self._stream, self._group, "-", upto, _AT_ONCE
            ):
                ids = [entry["message_id"] for entry in pending]
                self._client.xack(self._stream, self._group, *ids)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _read(self, after: str | bytes, count: int, block: int | None) -> list[Entry]:
        with self._translated_errors():
            answer = self._client.xreadgroup(
                self._group, self._consumer, {self._stream: after}, count=count, block=block
            )
        entries: list[Entry] = answer[0][1] if answer else []
        return entries

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except (errors.AuthenticationError, errors.AuthorizationError) as error:
            raise CelrecError(
                f"{self}: refused ({self._text(error)}); give user and password in the address"
            ) from None
        except (errors.ConnectionError, errors.TimeoutError, errors.ReadOnlyError) as error:
            raise BrokerUnavailable(self._text(error)) from None
        except errors.ResponseError as error:
            if str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise NoGroup from None
            raise CelrecError(f"{self}: {self._text(error)}") from None

    def _text(self, error: Exception) -> str:
        text = first_line(error).rstrip(".")
        return text.replace(self._secret, "…") if self._secret else text
