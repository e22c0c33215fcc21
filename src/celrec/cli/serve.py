"""`celrec serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from celrec.cli.options import Options, takes_options
from celrec.cli.runs import RunArgument
from celrec.config.options import SERVE
from celrec.errors import CelrecError


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
            help="Begin an online run that has learned nothing, with the settings of "
            "`celrec online`, if RUN holds none yet.",
        ),
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="Take no events from clients, and follow the checkpoints of a `celrec online` "
            "that learns.",
        ),
    ] = False,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with the key that clients must send as X-API-Key to change anything; "
            "or set CELREC_API_KEY."
        ),
    ] = None,
    max_body: Annotated[
        int, typer.Option(help="Bytes that the body of a request may have.")
    ] = 1_048_576,
    threads: Annotated[int, typer.Option(help="Longer answers that are worked on at once.")] = 2,
) -> None:
    """Answer over HTTP: recommendations, scores, clusters, reasons; and learn events that come.

    What a trained run is asked is at /docs, a page for people at /. Events are on the disk before
    they are acknowledged, and in the answers within a second. A run of `celrec online` goes on to
    learn; one of `celrec train` is replaced while it answers if it is trained anew. Needs
    `pip install 'celrec[serve]'`.

    Example: celrec serve live --port 8000

    Example: curl '127.0.0.1:8000/recommend?user=ann&k=5'
    """
    from celrec.cli._terminal import StopSignal
    from celrec.runs.following import Pace

    try:
        from celrec.service.guard import ApiKey, Limits
        from celrec.service.server import serve as answer
        from celrec.service.service import Service
    except ModuleNotFoundError as error:
        raise CelrecError(
            f"serve needs {error.name}; install it with pip install 'celrec[serve]'"
        ) from error

    def ready(service: Service, address: str) -> None:
        for error in service.damaged:
            typer.echo(f"celrec: {error}; going on with what is left", err=True)
        kind = "takes events" if service.online else "takes no events"
        typer.echo(f"serving {run} on {address} ({kind}); Ctrl-C stops it")

    def pace(batch: int) -> Pace:
        return Pace(batch, options["checkpoint_every"], options["checkpoint_seconds"])

    key, limits = ApiKey.found(api_key_file), Limits(body=max_body, threads=threads)
    if new:
        _begin(run)
    with StopSignal():
        answer(
            run,
            host,
            port,
            key=key,
            limits=limits,
            pace=pace,
            read_only=read_only,
            ready=ready,
        )


def _begin(folder: Path) -> None:
    """An online run that has learned nothing, as `celrec online` begins one."""
    from celrec.cli.online import opened_run
    from celrec.runs.checkpoint_folder import CheckpointFolder

    if not CheckpointFolder(folder).whole():
        with opened_run(folder, {}) as begun:
            begun.checkpoint()
