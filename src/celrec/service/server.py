"""A service on a port."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import uvicorn

from celrec.errors import CelrecError
from celrec.runs.following import Pace
from celrec.service.app import make_app
from celrec.service.guard import VARIABLE, ApiKey, Limits
from celrec.service.service import Service

_SWITCH = 0.0002  # seconds that a thread may keep others waiting for: requests are short
_GRACE = 10  # seconds for requests to be finished


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
    """Answer until SIGTERM or Ctrl-C; then finish requests and keep all that was learned.

    `pace` is told the size of the run's batches; `ready` the address, when it is listened to.
    Beyond loopback it takes an API key.
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
        torch.set_num_threads(1)  # answers are small: to share one out takes longer than to give it
        shown = f"[{host}]" if ":" in host else host
        if ready is not None:
            ready(service, f"http://{shown}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; who comes too early only waits."""
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
