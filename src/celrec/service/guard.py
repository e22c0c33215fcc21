"""The guard in front of all endpoints: limits, API key, Host check, security headers."""

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
_SHORTEST_KEY = 8


class ApiKey:
    """A secret that requests with changes must carry.

    >>> key = ApiKey("correct horse battery")
    >>> key.fits("correct horse battery"), key.fits("guess"), key.fits(None)
    (True, False, False)
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < _SHORTEST_KEY or not secret.isascii() or not secret.isprintable():
            raise CelrecError(
                f"API key: must be {_SHORTEST_KEY} characters or more, printable ASCII, not "
                f"{len(secret)} characters; make one with `openssl rand -hex 32`"
            )
        self._secret = secret.encode()

    @classmethod
    def found(cls, file: Path | None) -> ApiKey | None:
        """The key in a file, else in the environment variable CELREC_API_KEY, else None."""
        if file is None:
            secret = os.environ.get(VARIABLE)
            return None if secret is None else cls(secret.strip())
        try:
            return cls(file.read_text().strip())
        except OSError as error:
            raise CelrecError(f"{file}: cannot read the API key ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise CelrecError(f"{file}: is not a text file with an API key") from error

    def fits(self, given: str | None) -> bool:
        """Whether it is the secret, compared in constant time."""
        return given is not None and hmac.compare_digest(
            given.encode(errors="replace"), self._secret
        )


MOST_ANSWERS = 1_000
"""The largest k."""
MOST_ROWS = 10_000
"""The most events, pairs or items in a request."""
MOST_USERS = 1_000
"""The most users in a request."""
LONGEST_ID = 512
"""The most characters of an id."""
LARGEST_TARGET = 1e6
"""The largest absolute target: a single outlier could spoil a model."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that an operator can set."""

    body: int = 1 << 20
    """The most bytes of a request body, also with chunked encoding."""
    body_seconds: float = 30.0
    """Seconds within which the body must arrive."""
    threads: int = 2
    """Number of worker threads for answers that take longer."""

    def __post_init__(self) -> None:
        if self.body < 1024:
            raise CelrecError(f"max_body (--max-body) must be at least 1024 bytes, not {self.body}")
        if self.threads < 1:
            raise CelrecError(f"threads (--threads) must be at least 1, not {self.threads}")


class Refusal(Exception):  # noqa: N818  (the service itself works)
    """A refused request: the HTTP status and a message of one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


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
"""Paths that need the API key, if there is one."""
_LOCAL = (b"localhost", b"127.0.0.1", b"[::1]")


class Guard:
    """ASGI middleware that checks requests before they reach the endpoints.

    It checks the API key, the content type and the size of the body, which is read here. On
    loopback it also checks the Host header, against DNS rebinding from web pages. Responses get
    security headers, and are counted.
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
        """Handle an ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0

        async def with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        try:
            replay = await self._checked(scope, receive)
        except Refusal as refusal:
            await _refuse(with_headers, refusal)
        else:
            await self._app(scope, replay, with_headers)
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._answered(path, status, time.perf_counter() - begun)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        headers = dict(scope["headers"])
        if self._loopback:
            host = headers.get(b"host", b"").lower()
            name = host.partition(b"]")[0] + b"]" if host.startswith(b"[") else host.split(b":")[0]
            if name not in _LOCAL:
                raise Refusal(421, "the Host header does not name this machine; use 127.0.0.1")
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
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()  # the disconnect message
            sent = True
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
    body = json.dumps({"error": refusal.message}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of the body is not read
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class UnknownError(CelrecError):
    """An id, a cluster or a table that the model does not know."""
