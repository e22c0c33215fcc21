"""Resumable, verified downloads."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celrec.data.text_source import Progress
from celrec.errors import CelrecError
from celrec.runtime.atomic import lock_file

_CHUNK = 1 << 18
_TIMEOUT = 30.0
_TRIES = 5
_INTERRUPTIONS = (http.client.HTTPException, OSError)
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class DownloadError(CelrecError):
    """A file cannot be downloaded."""


def download(
    url: str,
    destination: Path,
    *,
    checksum: str | None = None,
    progress: Progress | None = None,
    patience: float = 1.0,
) -> None:
    """Download `url` to `destination`, which appears only when it is complete and verified.

    Bytes are written to `destination` + ".part". An interrupted download is resumed, up to five
    times without progress, after `patience` seconds and twice as long each time. A later call,
    after a crash or a kill, resumes from the same file. A file that has changed on the server is
    downloaded from the start.

    Args:
        url: The address of the file.
        destination: Where it is written.
        checksum: Algorithm and hexadecimal digest, as in `sha256:9c99…`.
        progress: Called with the bytes so far and in total.
        patience: Seconds before the first retry.

    """
    part = destination.with_name(destination.name + ".part")
    with _alone(part):
        _fetch_patiently(url, part, progress, patience)
        _verify(part, checksum, url)
        part.replace(destination)
        _tag_of(part).unlink(missing_ok=True)


def _fetch_patiently(url: str, part: Path, progress: Progress | None, patience: float) -> None:
    furthest, failures = part.stat().st_size, 0
    while True:
        try:
            return _fetch(url, part, progress)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                raise DownloadError(f"{url}: the server answers {error.code}") from error
            reason: Exception = error
        except _INTERRUPTIONS as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            reason = error
        reached = part.stat().st_size
        failures = 0 if reached > furthest else failures + 1
        furthest = max(furthest, reached)
        if failures >= _TRIES or _is_unreachable(reason):
            raise DownloadError(f"{url}: cannot be reached ({_cause(reason)})") from reason
        time.sleep(patience * 2**failures)


def _fetch(url: str, part: Path, progress: Progress | None) -> None:
    """Append the rest of `url` to `part`."""
    have = part.stat().st_size
    tag_file = _tag_of(part)
    request = urllib.request.Request(url, headers={"User-Agent": "celrec"})  # noqa: S310
    if have and tag_file.exists():
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", tag_file.read_text())
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not tag_file.exists():
            raise
        error.close()
        tag_file.unlink()  # the partial file does not belong to the current version
        return _fetch(url, part, progress)
    with response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else 0
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if not resumed:
            tag_file.unlink(missing_ok=True)
        # A weak tag does not guarantee equal bytes, and servers do not resume with it.
        if tag and not tag.startswith("W/"):
            tag_file.write_text(tag)
        with part.open("ab") as file:
            file.truncate(have)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if progress:
                    progress(have, max(total, have))
            file.flush()
            os.fsync(file.fileno())
    if total and have < total:
        raise http.client.IncompleteRead(b"", total - have)
    return None


def _verify(part: Path, checksum: str | None, url: str) -> None:
    if checksum is None:
        return
    algorithm, _, expected = checksum.partition(":")
    with part.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        part.unlink()
        _tag_of(part).unlink(missing_ok=True)
        raise DownloadError(
            f"{url}: wrong checksum, expected {checksum}, got {algorithm}:{found}; "
            "the file was removed, fetch it again or ask the publisher whether it changed"
        )


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Create `part` if needed, and lock it against other processes."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("ab")
    except OSError as error:
        raise CelrecError(
            f"cannot write in folder {str(part.parent)!r} ({error.strerror}); "
            "set CELREC_CACHE to a folder that you may write to"
        ) from error
    with file:
        try:
            lock_file(file, wait=False)
        except OSError as error:
            raise CelrecError(
                f"{part}: another process is fetching this file; wait for it"
            ) from error
        part.touch()  # another process may have finished and moved it
        try:
            yield
        finally:
            if part.exists() and not part.stat().st_size:
                part.unlink()


def _tag_of(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _is_unreachable(reason: Exception) -> bool:
    """Whether the host does not exist or refuses connections, so that retries are useless."""
    cause = reason.reason if isinstance(reason, urllib.error.URLError) else reason
    return isinstance(cause, ConnectionRefusedError) or type(cause).__name__ == "gaierror"


def _cause(reason: Exception) -> str:
    return str(getattr(reason, "reason", reason)) or type(reason).__name__
