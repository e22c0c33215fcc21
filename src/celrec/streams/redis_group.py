"""A consumer of a group that reads a Redis stream, and the entries of such streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from celrec.errors import CelrecError
from celrec.streams.broker import BrokerUnavailable
from celrec.streams.fields import json_objects

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes] | None]
"""The id and the fields, None if the entry is no longer in the stream."""

Number: TypeAlias = tuple[int, int]
"""What ids are compared by: a time, and a number within it."""

_WHOLE = (b"json", b"event")  # names of a field that holds a JSON object


def number_of(entry_id: str | bytes) -> Number:
    """An id as what it is compared by.

    >>> number_of("1526919030474-55") < number_of("1526919030474-123")
    True
    """
    moment, _, sequence = (
        entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    ).partition("-")
    return int(moment), int(sequence or 0)


def entry_objects(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The event in each entry, and what is wrong with which of them; empty for these.

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
    """What is in an entry, for people."""
    fields = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in (entry[1] or {}).items()
    }
    return json.dumps(fields, ensure_ascii=False)


_DEAD_AFTER = 60_000  # milliseconds
_AT_ONCE = 1000
_SLACK = 5.0  # seconds that an answer may take beyond the time that it was asked to wait


class NoGroup(Exception):  # noqa: N818
    """The group is gone, as after a restart of a server that keeps nothing."""


class Held(NamedTuple):
    """What a stream holds."""

    first: bytes | None
    """The lowest id."""
    length: int
    added: int | None
    """How many entries were ever added; Redis 6 does not tell."""


class RedisGroup:
    """The commands of a consumer; failures become BrokerUnavailable, NoGroup or CelrecError."""

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
                # A client that repeats a read by itself would lose what the first answer held.
                retry=Retry(NoBackoff(), 0),
            )
            pool = self._client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # raises if an option is unknown
        except (ValueError, TypeError):  # whose text may show a part of the password
            raise CelrecError(
                "url: not an address of Redis, or with options that it does not know; write "
                "redis://host:port/database, and special characters in a password as %XX"
            ) from None
        settings = pool.connection_kwargs
        self._secret: str = settings.get("password") or ""
        host = settings.get("path") or f"{settings.get('host')}:{settings.get('port', 6379)}"
        self._name = f"stream {stream!r} of Redis at {host}, database {settings.get('db', 0)}"

    def __str__(self) -> str:
        return self._name

    def open(self, at: str, entries: int | None) -> None:
        """Make the group, to begin after `at`, unless it is there.

        `entries` is how many were added to the stream up to there, if that is known.
        """
        with self._answering():
            try:
                self._client.xgroup_create(
                    self._stream, self._group, id=at, mkstream=True, entries_read=entries
                )
            except self._errors.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    def take_over(self) -> list[Entry]:
        """Take what idle consumers hold; what of it is no longer in the stream."""
        gone: list[Entry] = []
        start: bytes | None = None
        with self._answering():
            while start != b"0-0":
                start, _, *removed = self._client.xautoclaim(  # Redis 6 does not tell the removed
                    *(self._stream, self._group, self._consumer),
                    _DEAD_AFTER,
                    start_id=start or "0-0",
                    count=_AT_ONCE,
                )
                gone += [(entry_id, None) for ids in removed for entry_id in ids]
        return gone

    def wind_to(self, last: str, entries: int | None) -> None:
        """Let what comes after `last` be what nobody got yet, even if somebody did."""
        if self.delivered()[0] != last:
            with self._answering():
                self._client.xgroup_setid(self._stream, self._group, last, entries_read=entries)

    def delivered(self) -> tuple[str, int | None]:
        """The last id that the group has got, and how many entries there were up to it."""
        with self._answering():
            groups = self._client.xinfo_groups(self._stream)
        found = [group for group in groups if group["name"] == self._group.encode()]
        if not found:
            raise NoGroup
        last: str = found[0]["last-delivered-id"].decode()
        if number_of(last) > (0, 0):
            return last, found[0].get("entries-read")
        held = self.held()
        return last, None if held.added is None else held.added - held.length

    def held(self) -> Held:
        """What the stream holds."""
        with self._answering():
            told = self._client.xinfo_stream(self._stream)
        first = told["first-entry"]
        return Held(first[0] if first else None, told["length"], told.get("entries-added"))

    def pending(self, after: str | bytes, count: int) -> list[Entry]:
        """Entries that were delivered to this consumer and not acknowledged, in order."""
        return self._read(after, count, None)

    def fresh(self, count: int, seconds: float) -> list[Entry]:
        """Entries that nobody got yet; waits up to some seconds for the first."""
        return self._read(">", count, max(int(seconds * 1000), 1))

    def acknowledge(self, numbers: Sequence[Number]) -> None:
        """Tell Redis that these entries need not be kept for this consumer."""
        with self._answering():
            for start in range(0, len(numbers), _AT_ONCE):
                ids = [f"{moment}-{number}" for moment, number in numbers[start : start + _AT_ONCE]]
                self._client.xack(self._stream, self._group, *ids)

    def acknowledge_all(self, upto: str) -> None:
        """The same for all up to an id, whoever holds them."""
        with self._answering():
            while held := self._client.xpending_range(
                self._stream, self._group, "-", upto, _AT_ONCE
            ):
                ids = [entry["message_id"] for entry in held]
                self._client.xack(self._stream, self._group, *ids)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def _read(self, after: str | bytes, count: int, block: int | None) -> list[Entry]:
        with self._answering():
            answer = self._client.xreadgroup(
                self._group, self._consumer, {self._stream: after}, count=count, block=block
            )
        entries: list[Entry] = answer[0][1] if answer else []
        return entries

    @contextmanager
    def _answering(self) -> Iterator[None]:
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
        text = str(error).partition("\n")[0].rstrip(".")
        return text.replace(self._secret, "…") if self._secret else text
