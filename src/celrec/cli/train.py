"""`celrec train`."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celrec.errors import CelrecError

if TYPE_CHECKING:
    from celrec.data.interactions import Interactions
    from celrec.data.split import Split

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, or the name of a data set.")],
    model: Annotated[
        str,
        typer.Option(
            help="nmf: non-negative factors; mf: factors and biases; or a network: neumf, "
            "widedeep, deepfm, mmoe, din or dien."
        ),
    ] = "nmf",
    embedding: Annotated[
        str, typer.Option(help="cel, full, modulo, …: `celrec embeddings` tells them all.")
    ] = "cel",
    compression: Annotated[
        str,
        typer.Option(
            help="Rows of a compressed table: a share of its ids, a number, "
            "or auto: as many as validation data call for."
        ),
    ] = "1%",
    side: Annotated[str, typer.Option(help="What is compressed: items, users or both.")] = "items",
    rank: Annotated[
        int | None, typer.Option(help="The length of a row; that of the preset if not given.")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Settings: default; with nmf and mf also descent, with nmf paper or released, "
            "with networks scratch: no factorisation to begin with."
        ),
    ] = "default",
    start: Annotated[
        str,
        typer.Option(
            help="The first clusters: one, random:N, ratings:N (bins of mean rating), genres, "
            "or a run folder."
        ),
    ] = "one",
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Keep the first clusters to the end.")
    ] = False,
    personalise: Annotated[
        str,
        typer.Option(
            help="Who gets a row of their own in the end: none, all, or those with more "
            "interactions than a number."
        ),
    ] = "none",
    loss: Annotated[
        str,
        typer.Option(
            help="What a network is trained for: squared-error, cross-entropy (of targets 0 and "
            "1) or ranking (interactions above other items)."
        ),
    ] = "squared-error",
    positive: Annotated[
        float | None,
        typer.Option(
            help="Targets from this one on are conversions, for cross-entropy, ranking and mmoe."
        ),
    ] = None,
    features: Annotated[
        bool,
        typer.Option(
            "--features/--no-features",
            help="Whether a network sees genres, demographics and the like.",
        ),
    ] = True,
    penalty: Annotated[
        float, typer.Option(help="How many times as strong as usual penalties are.")
    ] = 1.0,
    rate: Annotated[
        float,
        typer.Option(
            help="How many times as high as usual learning rates are, with embedding cel-lite or "
            "preset online."
        ),
    ] = 1.0,
    fold: Annotated[
        str | None,
        typer.Option(
            help="Test on fold K of N, as in 1/5, or with `time` on the latest fifth; "
            "else on a random fifth."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split, the start and the moves.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the trained model to this folder.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where training for --out was interrupted.")
    ] = False,
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
    drop_invalid: Annotated[
        bool, typer.Option("--drop-invalid", help="Leave out rows that cannot be used.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a matrix factorisation or a network with clustered rows, and test it.

    The number of steps is chosen on a tenth of the training data; the model is then
    trained anew on all of them.

    Example: celrec train ml-1m --compression 1% --fold 1/5 --out run
    """
    from celrec.cli._training import resumable, show_result, training_progress
    from celrec.data.datasets.library import open_data
    from celrec.evaluation.diagnose import diagnose
    from celrec.evaluation.measuring import measure
    from celrec.training.checkpoint import Checkpoint
    from celrec.training.fit import fit
    from celrec.training.plan import Plan
    from celrec.training.run_folder import check_place, save_run

    plan = Plan(
        embedding=embedding,
        compression=compression,
        side=side,
        rank=rank,
        preset=preset,
        seed=seed,
        model=model,
        start=start,
        frozen=frozen,
        personalise=personalise,
        loss=loss,
        positive=positive,
        features=features,
        penalty=penalty,
        rate=rate,
    )
    if resume and out is None:
        raise CelrecError("resume needs --out, the folder that the interrupted training was for")
    if out is not None:
        check_place(out)
    reading = {
        "user": user_column,
        "item": item_column,
        "target": target_column,
        "timestamp": timestamp_column,
        "columns": id_column or [],
        "drop_invalid": drop_invalid,
    }
    whole = open_data(data, **reading)
    split = split_of(plan.prepared(whole), fold, seed)
    source = {"data": data, "reading": reading, "fold": fold, "seed": seed}
    unfinished = None if out is None else out.with_name(f"{out.name}.unfinished")
    checkpoint = Checkpoint(unfinished, {**asdict(plan), **source}, resume=resume)
    begun = time.perf_counter()
    with resumable(checkpoint), training_progress(plan) as watch:
        fitted = fit(split, plan, watch, checkpoint)
    seconds = time.perf_counter() - begun
    learned = split.train_and_valid()
    trained = fitted.model
    tables = trained.whole_tables
    memory = {side: table.memory() for side, table in tables.items()}
    held = sum(sum(t.nbytes for t in table.state_dict().values()) for table in tables.values())
    counts = learned.item_counts
    result: dict[str, Any] = {
        "test": measure(trained, plan, split.test, counts),
        "valid": {"mse" if plan.loss == "squared-error" else "loss": fitted.valid_loss},
        "clusters": trained.whole_tables["items"].num_rows,
        "steps": fitted.steps,
        "bytes": {
            "table": memory["items"].table,
            "index": memory["items"].index,
            "other_side": memory["users"].total,
            "columns": {n: m.total for n, m in memory.items() if n not in ("items", "users")},
            "network": sum(t.nbytes for t in trained.state_dict().values()) - held,
        },
        "seconds": seconds,
        "growth": fitted.growth,
        "diagnostics": diagnose(trained, learned) if embedding == "cel" else None,
    }
    if out is not None:
        save_run(out, learned, trained, plan, fitted.judgements, source, result, seen=whole)
        checkpoint.remove()
    if as_json:
        typer.echo(
            json.dumps({"data": data, **asdict(plan), "rank": plan.dim, "fold": fold, **result})
        )
    else:
        show_result(data, plan, result, out)


def split_of(log: Interactions, fold: str | None, seed: int) -> Split:
    """The split that `--fold` and `--seed` name."""
    from celrec.data.split import Split

    if fold is None:
        return Split.random(log, seed=seed)
    if fold == "time":
        return Split.chronological(log)
    return Split.fold(log, *fold_of(fold), seed=seed)


def fold_of(text: str) -> tuple[int, int]:
    """Which fold of how many `1/5` names."""
    parts = re.fullmatch(r"(\d+)/(\d+)", text)
    if parts is None:
        raise CelrecError(f"fold must look like 1/5, not {text!r}")
    return int(parts[1]), int(parts[2])
