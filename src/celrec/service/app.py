"""The FastAPI application (endpoints, web pages, guard, error handlers) and its server."""

from __future__ import annotations

import ipaddress
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version as version_of
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from celrec.errors import CelrecError
from celrec.runs.following import Pace
from celrec.service.endpoints import (
    add_event_endpoints,
    add_listing_endpoints,
    add_prediction_endpoints,
    add_status_endpoints,
    problems,
)
from celrec.service.events import validation_message
from celrec.service.guard import VARIABLE, ApiKey, Guard, Limits, Refusal, UnknownError
from celrec.service.metrics import Metrics
from celrec.service.service import Service

_T = TypeVar("_T")
_PAGES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "docs": ("docs.html", "text/html; charset=utf-8"),
    "docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_ABOUT = """Recommendations of a trained celrec run, which can also learn new events.

Ids are integers or strings, as in the data. Each answer is from one version of the model."""
_MESSAGES = {
    400: "the body is not JSON, or is nested too deeply",
    404: "no such path; /docs lists all of them",
    405: "the method is not allowed for this path; /docs lists the allowed ones",
}
_LOG = logging.getLogger("celrec.service")


def make_app(
    service: Service, limits: Limits, key: ApiKey | None = None, *, loopback: bool = True
) -> FastAPI:
    """The application of a service, which starts and stops with it."""
    metrics = Metrics(service)
    threads = anyio.CapacityLimiter(limits.threads)

    async def in_thread(work: Callable[[], _T], *, brief: bool = False) -> _T:
        """Run work in a thread, so that the event loop stays free.

        Brief work runs at once: handing it to a thread would take longer.
        """
        return work() if brief else await anyio.to_thread.run_sync(work, limiter=threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="celrec",
        description=_ABOUT,
        version=version_of("celrec"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=problems(400, 405, 408, 413, 415, 421, 422),
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.add_middleware(Guard, limits=limits, key=key, loopback=loopback, answered=metrics.answered)
    _handle_errors(app)

    add_event_endpoints(app, service, metrics)
    add_prediction_endpoints(app, service, in_thread)
    add_listing_endpoints(app, service, in_thread)
    add_status_endpoints(app, service, metrics, needs_key=key is not None)
    for name, (file, kind) in _PAGES.items():
        app.get(f"/{name}", include_in_schema=False)(_page(file, kind))
    schema = app.openapi()  # cached by the application
    schema["components"]["securitySchemes"] = {
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    }
    return app


def _page(file: str, kind: str) -> Callable[[], Any]:
    content = (files("celrec.service") / "page" / file).read_bytes()

    async def page() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return page


def _handle_errors(app: FastAPI) -> None:

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> JSONResponse:
        return _problem(refusal.status, refusal.message)

    @app.exception_handler(CelrecError)
    async def wrong_input(_: Request, error: CelrecError) -> JSONResponse:
        return _problem(404 if isinstance(error, UnknownError) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _problem(422, validation_message(error.errors()))

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        answer = _problem(error.status_code, _MESSAGES.get(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        _LOG.error("%s %s", request.method, request.url.path, exc_info=error)
        return _problem(500, f"internal error, {type(error).__name__}; see the log of the service")


def _problem(status: int, line: str) -> JSONResponse:
    # Input may contain lone surrogates, which cannot be encoded as UTF-8.
    text = " ".join(line.split())
    return JSONResponse({"error": text.encode("utf-8", "replace").decode()}, status)


_SWITCH = 0.0002  # seconds between thread switches: requests are short
_GRACE = 10  # seconds for running requests to finish


def serve(
    folder: Path,
    host: str,
    port: int,
    *,
    key: ApiKey | None = None,
    limits: Limits | None = None,
    pace: Callable[[int], Pace] = Pace,
    read_only: bool = False,
    ready: Callable[[Service, str], None] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish running requests and write a checkpoint.

    Args:
        folder: The run folder.
        host: Address to listen on; an API key is required beyond loopback.
        port: Port to listen on; 0 picks a free one.
        key: API key for requests that change something.
        limits: Limits on requests.
        pace: Makes the learning pace from the batch size of the run.
        read_only: Serve an online run without learning.
        ready: Called with the service and its address when the port is open.

    """
    loopback = is_loopback(host)
    if not loopback and key is None:
        raise CelrecError(
            f"host {host!r}: others could reach the service, so it needs an API key; give "
            f"--api-key-file FILE or {VARIABLE}, or listen on 127.0.0.1"
        )
    limits = limits or Limits()
    listening = _listen(host, port)
    with listening:
        service = Service(folder, pace, read_only=read_only)
        app = make_app(service, limits, key, loopback=loopback)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE,
            lifespan="on",
        )
        sys.setswitchinterval(_SWITCH)
        torch.set_num_threads(1)  # answers are small: more threads would be slower
        shown = f"[{host}]" if ":" in host else host
        if ready is not None:
            ready(service, f"http://{shown}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; connections are queued until the server runs."""
    listening = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except (OSError, OverflowError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        problem = getattr(error, "strerror", None) or str(error)
        raise CelrecError(
            f"{host}:{port}: cannot listen there ({problem}); choose another --host or --port"
        ) from error
    return listening
