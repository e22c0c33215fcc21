"""`celrec online`."""

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
    from celrec.cli.online_display import Status, display
    from celrec.cli.terminal import StopSignal
    from celrec.data.columns import Columns
    from celrec.evaluation.prequential import Prequential
    from celrec.runs.following import Pace, follow
    from celrec.runtime.communicator import check_one_process
    from celrec.runtime.memory_budget import byte_size
    from celrec.streams.opening import open_source

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
