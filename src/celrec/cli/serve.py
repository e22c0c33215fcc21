"""`celrec serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celrec.cli.options import Options, RunArgument, takes_options
from celrec.config.options import SERVE
from celrec.errors import CelrecError

if TYPE_CHECKING:
    from celrec.service.service import Service


@takes_options(SERVE)
def serve(
    run: RunArgument,
    options: Options,
    host: Annotated[
        str, typer.Option(help="The address to listen on; beyond loopback it takes an API key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port; 0 for any that is free.")
    ] = 8000,
    new: Annotated[
        bool,
        typer.Option(
            "--new",
            help="Start an online run, with the default settings of `celrec online`, if RUN holds "
            "none yet.",
        ),
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="Accept no events, and follow the checkpoints that a `celrec online` writes.",
        ),
    ] = False,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the key that clients must send as X-API-Key to change anything; "
            "or set CELREC_API_KEY."
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(help="The largest request body in bytes.")] = 1_048_576,
    threads: Annotated[
        int, typer.Option(help="The number of worker threads for long requests.")
    ] = 2,
) -> None:
    """Serve recommendations, scores, clusters and explanations over HTTP, and learn from events.

    The API is described at /docs; / is a page for the browser. Events are on the disk before they
    are acknowledged, and in the responses within a second. A run of `celrec online` is trained
    further; one of `celrec train` is reloaded when it is trained again. Needs
    `pip install 'celrec[serve]'`.

    Example: celrec serve live --port 8000

    Example: curl '127.0.0.1:8000/recommend?user=ann&k=5'
    """
    from celrec.cli.terminal import StopSignal
    from celrec.runs.following import Pace

    try:
        from celrec.service.app import serve as run_server
        from celrec.service.guard import ApiKey, Limits
    except ModuleNotFoundError as error:
        raise CelrecError(
            f"serve needs {error.name}; install it with pip install 'celrec[serve]'"
        ) from error

    def pace(batch: int) -> Pace:
        return Pace(batch, options["checkpoint_every"], options["checkpoint_seconds"])

    key, limits = ApiKey.found(api_key_file), Limits(body=max_body, threads=threads)
    if new:
        _begin(run)
    with StopSignal():
        how: dict[str, Any] = {"key": key, "limits": limits, "pace": pace, "read_only": read_only}
        run_server(run, host, port, **how, ready=_announce)


def _announce(service: Service, address: str) -> None:
    for error in service.damaged:
        typer.echo(f"celrec: {error}; going on without it", err=True)
    kind = "takes events" if service.online else "takes no events"
    typer.echo(f"serving {service.folder} on {address} ({kind}); Ctrl-C stops it")


def _begin(folder: Path) -> None:
    from celrec.cli.online import opened_run
    from celrec.runs.checkpoint_folder import CheckpointFolder

    if not CheckpointFolder(folder).whole():
        with opened_run(folder, {}) as begun:
            begun.checkpoint()
