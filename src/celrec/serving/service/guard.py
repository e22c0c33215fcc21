"""What no request gets past."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celrec.serving.service.api_key import ApiKey
from celrec.serving.service.limits import Limits
from celrec.serving.service.refusal import Refusal

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
