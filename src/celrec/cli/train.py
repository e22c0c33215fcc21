"""`celrec train`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from celrec.errors import CelrecError

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, or the name of a data set.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="nmf: non-negative factors; mf: factors and biases; or a network: neumf, "
            "widedeep, deepfm, mmoe, din or dien. Picked from the data if not given, as are the "
            "next three and the loss."
        ),
    ] = None,
    embedding: Annotated[
        str | None, typer.Option(help="cel, full, modulo, …: `celrec embeddings` tells them all.")
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(
            help="Rows of a compressed table: a share of its ids, a number, "
            "or auto: as many as validation data call for."
        ),
    ] = None,
    side: Annotated[
        str | None, typer.Option(help="What is compressed: items, users or both.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="The length of a row; that of the preset if not given.")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Settings: default; with nmf and mf also descent, with nmf paper or released, "
            "with networks clusters or scratch: no rows, or nothing at all, of a factorisation."
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
        str | None,
        typer.Option(
            help="What a network is trained for: squared-error, cross-entropy (of targets 0 and "
            "1) or ranking (interactions above other items)."
        ),
    ] = None,
    positive: Annotated[
        float | None,
        typer.Option(
            help="Targets from this one on are conversions, for cross-entropy, ranking and mmoe."
        ),
    ] = None,
    negatives: Annotated[
        int | None,
        typer.Option(
            help="For logs that tell only what happened: each interaction counts as 1, and so many "
            "items that the user had nothing to do with are learned as 0 beside it."
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
    from celrec.config.picking import check_options, pick
    from celrec.data.datasets.library import open_data
    from celrec.data.split import Split
    from celrec.evaluation.comparison import training_result
    from celrec.offline.checkpoint import Checkpoint
    from celrec.offline.fitting import fit
    from celrec.runs.run_folder import check_place, save_run
    from celrec.runtime.communicator import launched, restarted

    said = {
        "embedding": embedding,
        "compression": compression,
        "side": side,
        "rank": rank,
        "preset": preset,
        "seed": seed,
        "model": model,
        "start": start,
        "frozen": frozen,
        "personalise": personalise,
        "loss": loss,
        "positive": positive,
        "negatives": negatives,
        "features": features,
        "penalty": penalty,
        "rate": rate,
    }
    given = {name: value for name, value in said.items() if value is not None}
    check_options(given)
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
    plan, picked = pick(whole, given)
    split = Split.named(plan.prepared(whole), fold, seed)
    source = {"data": data, "reading": reading, "fold": fold, "seed": seed}
    unfinished = None if out is None else out.with_name(f"{out.name}.unfinished")
    begun = time.perf_counter()
    with launched() as communicator:
        again = resume or restarted()
        about = {**asdict(plan), **source}
        checkpoint = Checkpoint(unfinished, about, resume=again, writing=communicator.first)
        with resumable(checkpoint), training_progress(plan, shown=communicator.first) as watch:
            fitted = fit(split, plan, watch, checkpoint, communicator=communicator)
    if not communicator.first:
        return
    seconds = time.perf_counter() - begun
    learned = split.train_and_valid()
    result = training_result(fitted, plan, split, seconds)
    if out is not None:
        source["picked"] = picked
        save_run(
            out, learned, fitted.model, plan, fitted.validation_records, source, result, seen=whole
        )
        checkpoint.remove()
    if as_json:
        told = {"data": data, **asdict(plan), "rank": plan.dim, "fold": fold, "picked": picked}
        typer.echo(json.dumps({**told, **result}))
    else:
        show_result(data, plan, picked, result, out)
