"""`celrec online` and `celrec serve`: learning from a stream, and serving."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celrec.cli.options import Options, takes_options
from celrec.config.options import ONLINE, online_defaults, renamed
from celrec.errors import CelrecError

if TYPE_CHECKING:
    from celrec.runs.online_run import OnlineRun


from typing import TYPE_CHECKING

from celrec.cli.options import RunArgument
from celrec.config.options import SERVE

if TYPE_CHECKING:
    from celrec.service.service import Service


@takes_options(ONLINE)
def online(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Files in order, a folder to watch, - for standard input, "
            "redis://host:port/database/STREAM or kafka://host:port/TOPIC.",
        ),
    ],
    run: Annotated[
        Path,
        typer.Option(help="The folder of the run; a run that it holds is resumed."),
    ],
    options: Options,
    events: Annotated[
        int | None,
        typer.Option(
            help="Stop after the batch in which the run reaches so many events, counted from its "
            "start; if not given, at the end of the source."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="The memory budget of tables, ids and histories: 8GB, 500MB, 1.5GiB or a number "
            "of bytes. What exceeds it is mapped from temporary files in RUN. It may change from "
            "start to start; no result depends on it."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for machines: a line for each window.")
    ] = False,
) -> None:
    """Learn from a stream of events, and write checkpoints.

    Stop it at any time; the same command resumes from the last checkpoint, and no event is lost
    or learned twice. Invalid events are written to RUN/rejected.jsonl.

    Example: celrec online events.csv --run run --loss cross-entropy --positive 4
    """
    from celrec.cli.terminal import StopSignal
    from celrec.cli.training_display import Status, display
    from celrec.data.columns import Columns
    from celrec.evaluation.prequential import Prequential
    from celrec.runs.following import Pace, follow
    from celrec.runtime.communicator import check_one_process
    from celrec.runtime.memory_budget import byte_size
    from celrec.streams.file_source import open_source

    check_one_process("celrec online")
    budget = None if memory is None else byte_size(memory, "--memory")
    checkpoints = options["checkpoint_every"], options["checkpoint_seconds"]
    given = {n: v for n in online_defaults() if (v := options[n]) not in (None, [])}
    with StopSignal() as stop, opened_run(run, given, budget) as opened:
        settings = opened.source["asked"]
        pace = Pace(settings["batch"], *checkpoints, events)
        roles = opened.source["reading"]
        names = {role: roles.get(role) for role in ("user", "item", "target", "timestamp")}
        more, needed = tuple(roles["columns"]), not opened.plan.only_positive
        columns = Columns(**names, more=more, need_target=needed)
        source = open_source(sources, columns, group=settings["group"])
        metrics = Prequential(settings["window"])
        if opened.notes:
            metrics.load_state_dict(opened.notes)
        for error in opened.damaged:
            typer.echo(f"celrec: {error}; going on from {opened.events:,} events", err=True)
        status = Status(opened, metrics)
        with closing(source), display(status, as_json=as_json) as show:
            follow(
                opened,
                source,
                pace,
                heard=lambda learned: show(metrics.add(learned)),
                notes=metrics.state_dict,
                stop=lambda: stop.requested,
            )
        end = {"kind": "end", "stopped": stop.requested, "run": str(run), **status.as_dict()}
        typer.echo(json.dumps(end) if as_json else status.line())
        if stop.requested:
            typer.echo("celrec: stopped; the same command resumes from here", err=True)


def opened_run(folder: Path, given: dict[str, Any], memory: int | None = None) -> OnlineRun:
    """The run in a folder with the settings it was started with, or a new one with those `given`.

    `memory` is the memory budget in bytes.
    """
    from celrec.online.eviction import IdleTime
    from celrec.runs.checkpoint_folder import CheckpointFolder
    from celrec.runs.following import requested_plan, stream_source
    from celrec.runs.online_run import OnlineRun

    if CheckpointFolder(folder).whole():
        run = OnlineRun.resume(folder, memory)
        known = renamed(run.source.get("asked", {}))
        for name, value in given.items():
            if value != known.get(name):
                run.close()
                raise CelrecError(
                    f"{folder}: was started with --{name.replace('_', '-')} {known.get(name)}, "
                    f"not {value}; leave it out, or start a run in another folder"
                )
        return run
    settings = {**online_defaults(), **given}
    plan = requested_plan(settings)
    after = settings["evict_after"]
    return OnlineRun.start(
        folder,
        plan,
        settings["id_column"],
        source=stream_source(settings, plan, folder.resolve().name),
        expected_ids=settings["expected_ids"],
        evict_after=None if after is None else IdleTime.parse(after),
        memory=memory,
    )


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
    r"""Serve recommendations, scores, clusters and explanations over HTTP, and learn from events.

    The API is described at /docs; / is a page for the browser. Events are on the disk before they
    are acknowledged, and in the responses within a second. A run of `celrec online` is trained
    further; one of `celrec train` is reloaded when it is trained again. Needs
    `pip install 'celrec\[serve]'`.

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
