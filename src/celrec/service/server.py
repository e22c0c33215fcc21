"""A service on a TCP port."""

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
