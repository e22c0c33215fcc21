"""What every request passes: limits, keys, and the errors that are answered."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celrec.errors import CelrecError

VARIABLE = "CELREC_API_KEY"
_LEAST = 8


class ApiKey:
    """A secret that requests which change something must show.

    >>> key = ApiKey("correct horse battery")
    >>> key.fits("correct horse battery"), key.fits("guess"), key.fits(None)
    (True, False, False)
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < _LEAST or not secret.isascii() or not secret.isprintable():
            raise CelrecError(
                f"API key: must be {_LEAST} characters or more, printable ASCII, not "
                f"{len(secret)} characters; make one with `openssl rand -hex 32`"
            )
        self._secret = secret.encode()

    @classmethod
    def found(cls, file: Path | None) -> ApiKey | None:
        """The one in a file, else the one in the environment variable CELREC_API_KEY, if any."""
        if file is None:
            secret = os.environ.get(VARIABLE)
            return None if secret is None else cls(secret.strip())
        try:
            return cls(file.read_text().strip())
        except OSError as error:
            raise CelrecError(f"{file}: cannot read the API key ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise CelrecError(f"{file}: holds no API key, but something else") from error

    def fits(self, given: str | None) -> bool:
        """Whether it is the secret; takes as long for any other."""
        return given is not None and hmac.compare_digest(
            given.encode(errors="replace"), self._secret
        )


MOST_ANSWERS = 1_000
"""The largest k."""
MOST_ROWS = 10_000
"""Events, pairs or items in a request, at most."""
MOST_USERS = 1_000
"""In a request."""
LONGEST_ID = 512
"""Characters of an id."""
LARGEST_TARGET = 1e6
"""Far from all others, a single target could spoil what was learned."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator may set."""

    body: int = 1 << 20
    """Bytes of a request, however it is sent."""
    body_seconds: float = 30.0
    """Within which a body must have come."""
    threads: int = 2
    """Longer answers that are worked on at the same time."""

    def __post_init__(self) -> None:
        if self.body < 1024:
            raise CelrecError(f"max_body (--max-body) must be at least 1024 bytes, not {self.body}")
        if self.threads < 1:
            raise CelrecError(f"threads (--threads) must be at least 1, not {self.threads}")


class Refusal(Exception):  # noqa: N818  (the service is as it should be)
    """The status of the answer, and one line that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
CHANGING = ("/events",)
"""Where something is changed, and so a key must be shown if there is one."""
_LOCAL = (b"localhost", b"127.0.0.1", b"[::1]")


class Guard:
    """Sees that bodies are short and JSON, that who changes something has shown the key, and on
    loopback that the host is this machine.

    By the name of a host, a web page could otherwise be led to ask a service of the machine on
    which it is read. A body is read here, up to the limit, however it is sent. Every answer gets
    headers that keep browsers from running what is not ours, and is counted.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        key: ApiKey | None = None,
        *,
        loopback: bool,
        answered: Callable[[str, int, float], None],
    ) -> None:
        self._app, self._limits, self._key, self._loopback = app, limits, key, loopback
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        try:
            replay = await self._checked(scope, receive)
        except Refusal as refusal:
            await _refuse(told, refusal)
        else:
            await self._app(scope, replay, told)
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._answered(path, status, time.perf_counter() - begun)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        headers = dict(scope["headers"])
        if self._loopback:
            host = headers.get(b"host", b"").lower()
            name = host.partition(b"]")[0] + b"]" if host.startswith(b"[") else host.split(b":")[0]
            if name not in _LOCAL:
                raise Refusal(421, "the Host header does not name this machine; ask 127.0.0.1")
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return receive
        if self._key is not None and scope["path"] in CHANGING:
            shown = headers.get(b"x-api-key")
            if not self._key.fits(None if shown is None else shown.decode("latin-1")):
                raise Refusal(401, "the header X-API-Key is missing or wrong; give the key")
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(415, "the content type must be application/json")
        limit = self._limits.body
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > limit:
            raise _too_long(limit)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await _body(receive, limit)
        except TimeoutError:
            raise Refusal(408, "the body did not come in time; send it at once") from None
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()  # only that the client has gone
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay


async def _body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the body ended too early")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_long(limit)
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_long(limit: int) -> Refusal:
    return Refusal(413, f"the body is longer than {limit:,} bytes; send it in parts")


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.why}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # what is left of the body is not read
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class UnknownError(CelrecError):
    """An id, a cluster or a side that the model does not know."""
