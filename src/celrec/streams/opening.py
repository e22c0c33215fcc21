"""Opening a source by its path or address."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams.events import EventSource
from celrec.streams.file_source import FileSource, FolderSource, StandardInput
from celrec.streams.kafka_source import KafkaSource
from celrec.streams.redis_source import RedisSource

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
