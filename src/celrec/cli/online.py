"""`celrec online`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celrec.errors import CelrecError

if TYPE_CHECKING:
    from celrec.runs.online_run import OnlineRun

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, for machines: a line for each window.")
]


def online(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Files in their order, a folder to watch, - for standard input, "
            "redis://host:port/database/STREAM or kafka://host:port/TOPIC.",
        ),
    ],
    run: Annotated[
        Path,
        typer.Option(help="The folder of the run. If it holds one, that one goes on."),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="nmf, mf, neumf, widedeep, deepfm, mmoe, din or dien; mf if not given."),
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(help="cel-lite, taken if none is given, or another with --preset online."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings: default (ids between rows), hard (each in one cluster), paper; "
            "online for other embeddings."
        ),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(
            help="Rows of a compressed table, at most: a number, or a share of "
            "--expected-ids; 256 if not given."
        ),
    ] = None,
    expected_ids: Annotated[
        int | None, typer.Option(help="How many ids a table will have, for a share of them.")
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(help="What is compressed: items, users or both; both if not given."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="The length of a row; that of the preset if not given.")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="squared-error, or cross-entropy of targets 0 and 1."),
    ] = None,
    positive: Annotated[
        float | None, typer.Option(help="Targets from this one on are conversions.")
    ] = None,
    negatives: Annotated[
        int | None,
        typer.Option(
            help="For events that tell only what happened: each counts as 1, and so many items "
            "that the user has not seen are learned as 0 beside it."
        ),
    ] = None,
    personalise: Annotated[
        str | None,
        typer.Option(
            help="Who gets a row of their own besides: none, all, or those with more events than "
            "a number."
        ),
    ] = None,
    penalty: Annotated[
        float | None, typer.Option(help="How many times as strong as usual penalties are.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="How many times as high as usual learning rates are.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the start; 0 if not given.")] = None,
    user_column: Annotated[str | None, typer.Option(help="The column of users.")] = None,
    item_column: Annotated[str | None, typer.Option(help="The column of items.")] = None,
    target_column: Annotated[str | None, typer.Option(help="The column of ratings.")] = None,
    timestamp_column: Annotated[str | None, typer.Option(help="The column of times.")] = None,
    id_column: Annotated[
        list[str] | None,
        typer.Option(
            help="A further column of ids for a network, such as shops; compressed too. "
            "May be given several times."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="How many events are learned at once; as in the preset if not given."),
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(help="Keep what was learned after so many events …")
    ] = 100_000,
    checkpoint_seconds: Annotated[float, typer.Option(help="… or after so many seconds.")] = 60.0,
    events: Annotated[
        int | None,
        typer.Option(
            help="Stop with the batch in which the run reaches so many events, counted from its "
            "start; else with the source, or never."
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Measure by so many events, each predicted before it is learned; "
            "10,000 if not given."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="What a broker knows the run by; celrec- and the name of the folder if not given."
        ),
    ] = None,
    forget_after: Annotated[
        str | None,
        typer.Option(
            help="Drop ids that are silent for longer: a number of events, or 90d, 12h, 30m or 45s "
            "by timestamps: dates, or numbers, which are seconds below 10¹¹, milliseconds below "
            "10¹⁴, microseconds below 10¹⁷. Nobody is dropped if not given."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="How much of it what is held for ids may take: 8GB, 500MB, 1.5GiB or a number of "
            "bytes. What is more is in files in RUN that have no names, and end with the program. "
            "Another value, or none, may be given each time; no result depends on it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn from events as they come, with ids as they are, and keep it safe.

    Stop it at any time, and give the same command again: it goes on after the last
    checkpoint, and no event is lost or learned twice. Events that cannot be used are set
    aside in RUN/rejected.jsonl.

    Example: celrec online events.csv --run run --loss cross-entropy --positive 4
    """
    said = locals()
    from celrec.cli._online_display import Status, telling
    from celrec.cli._terminal import StopSignal
    from celrec.data.columns import Columns
    from celrec.evaluation.prequential import Prequential
    from celrec.runs.following import DEFAULTS, Pace, follow
    from celrec.runtime.communicator import check_one_process
    from celrec.runtime.memory_budget import byte_size
    from celrec.streams.opening import open_source

    check_one_process("celrec online")
    budget = None if memory is None else byte_size(memory, "--memory")
    given = {n: v for n, v in said.items() if n in DEFAULTS and v not in (None, [])}
    with StopSignal() as stop, opened_run(run, given, budget) as opened:
        asked = opened.source["asked"]
        pace = Pace(asked["batch"], checkpoint_every, checkpoint_seconds, events)
        roles = opened.source["reading"]
        columns = Columns(*map(roles.get, ("user", "item", "target", "timestamp")))
        columns = replace(
            columns, more=tuple(roles["columns"]), need_target=not opened.plan.only_positive
        )
        source = open_source(sources, columns, group=asked["group"])
        metrics = Prequential(asked["window"])
        if opened.notes:
            metrics.load_state_dict(opened.notes)
        for error in opened.damaged:
            typer.echo(f"celrec: {error}; going on from {opened.events:,} events", err=True)
        status = Status(opened, metrics)
        try:
            with telling(status, as_json=as_json) as tell:
                follow(
                    opened,
                    source,
                    pace,
                    heard=lambda learned: tell(metrics.add(learned)),
                    notes=metrics.state_dict,
                    stop=lambda: stop.asked,
                )
        finally:
            source.close()
        if as_json:
            told = {"kind": "end", "stopped": stop.asked, "run": str(run), **status.told()}
            typer.echo(json.dumps(told))
        else:
            typer.echo(status.line())
        if stop.asked:
            typer.echo("celrec: stopped; the same command goes on from here", err=True)


def opened_run(folder: Path, given: dict[str, Any], memory: int | None = None) -> OnlineRun:
    """The run in a folder, or a new one; options that are not given are as they were.

    For `memory` see `OnlineRun.start`.
    """
    from celrec.online.eviction import IdleTime
    from celrec.runs.checkpoint_folder import CheckpointFolder
    from celrec.runs.following import DEFAULTS, requested_plan, stream_source
    from celrec.runs.online_run import OnlineRun

    if CheckpointFolder(folder).whole():
        run = OnlineRun.resume(folder, memory)
        known = run.source.get("asked", {})
        for name, value in given.items():
            if value != known.get(name):
                run.close()
                raise CelrecError(
                    f"{folder}: was started with --{name.replace('_', '-')} {known.get(name)}, "
                    f"not {value}; leave it out, or start a run in another folder"
                )
        return run
    asked = {**DEFAULTS, **given}
    plan = requested_plan(asked)
    idle_time = None if asked["forget_after"] is None else IdleTime.parse(asked["forget_after"])
    return OnlineRun.start(
        folder,
        plan,
        asked["id_column"],
        source=stream_source(asked, plan, folder.resolve().name),
        expected_ids=asked["expected_ids"],
        forget_after=idle_time,
        memory=memory,
    )
