"""`celrec train` and `celrec compare`, and lists of models and embeddings."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celrec.cli.options import Json, Options, takes_options
from celrec.config.options import COMPARE, TRAIN, columns_to_read, given_plan_options
from celrec.errors import CelrecError

if TYPE_CHECKING:
    from celrec.evaluation.comparison import ComparisonRow


@takes_options(TRAIN)
def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, or the name of a data set.")],
    options: Options,
    fold: Annotated[
        str | None,
        typer.Option(
            help="Test on fold K of N, as in 1/5, or with `time` on the latest fifth; "
            "else on a random fifth."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the trained model to this folder.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the interrupted training of --out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a matrix factorisation or a network with clustered embeddings, and test it.

    Early stopping on a tenth of the training data chooses the number of steps; the model is then
    trained anew on all of them. Model, embedding, compression, side, loss and negative samples are
    picked from the data if not given.

    Example: celrec train ml-1m --compression 1% --fold 1/5 --out run
    """
    from celrec.cli.training_display import resumable, show_result, training_progress
    from celrec.config.picking import check_options, pick
    from celrec.data.datasets.library import open_data
    from celrec.data.split import Split
    from celrec.evaluation.comparison import training_result
    from celrec.offline.checkpoint import Checkpoint
    from celrec.offline.fitting import fit
    from celrec.runs.run_folder import check_place, save_run, trained_run
    from celrec.runtime.communicator import launched, restarted

    given = given_plan_options(options)
    check_options(given)
    if resume and out is None:
        raise CelrecError("resume needs --out, the folder that the interrupted training was for")
    if out is not None:
        check_place(out)
    reading = {**columns_to_read(options), "drop_invalid": options["drop_invalid"]}
    whole = open_data(data, **reading)
    plan, picked = pick(whole, given)
    split = Split.named(plan.prepared(whole), fold, plan.seed)
    source = {"data": data, "reading": reading, "fold": fold, "seed": plan.seed}
    unfinished = None if out is None else out.with_name(f"{out.name}.unfinished")
    begun = time.perf_counter()
    with launched() as communicator:
        again = resume or restarted()
        about = {**asdict(plan), **source}
        checkpoint = Checkpoint(unfinished, about, resume=again, writing=communicator.is_main)
        with resumable(checkpoint), training_progress(plan, shown=communicator.is_main) as watch:
            fitted = fit(split, plan, watch, checkpoint, communicator=communicator)
    if not communicator.is_main:
        return
    result = training_result(fitted, plan, split, time.perf_counter() - begun)
    if out is not None:
        source["picked"] = picked
        learned, records = split.train_and_valid(), fitted.validation_records
        save_run(out, trained_run(learned, fitted.model, plan, records, source, result, seen=whole))
        checkpoint.remove()
    if as_json:
        about = {"data": data, **asdict(plan), "rank": plan.dim, "fold": fold, "picked": picked}
        typer.echo(json.dumps({**about, **result}))
    else:
        show_result(data, plan, picked, result, out)


@takes_options(COMPARE)
def compare(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, or the name of a data set.")],
    options: Options,
    folds: Annotated[
        str | None,
        typer.Option(
            help="Test on these folds, as in 1/5 or 1/5,2/5; else on a random fifth, once."
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Hyperparameter search: choose the regularisation of each method on validation "
            "data, from four factors.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write finished cells to this file, and resume from those it holds."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw error against bytes to this file (png, svg, pdf).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train embedding methods side by side: errors, bytes and times in one table.

    Example: celrec compare ml-100k --embedding cel,modulo,qr --compression 5%,1% --tune
    """
    from celrec.cli.comparison_display import comparing, show_comparison
    from celrec.config.plan import Plan
    from celrec.data.datasets.library import open_data
    from celrec.data.split import fold_of
    from celrec.evaluation.comparison import FULL, PENALTIES, Comparison
    from celrec.evaluation.comparison_plot import draw_comparison, picture_kind

    if plot is not None:
        picture_kind(plot)  # complains before anything is trained
    one = {n: v for n, v in options.items() if n not in ("embedding", "compression")}
    plan = Plan(**given_plan_options(one))
    comparison = Comparison(
        open_data(data, need_target=not plan.only_positive),
        plan,
        [FULL, *_words("embedding", options["embedding"])],
        _words("compression", options["compression"]),
        folds=[None] if folds is None else [fold_of(word) for word in _words("folds", folds)],
        name=data,
        penalties=PENALTIES if tune else (),
        path=out,
    )
    with comparing(comparison) as watch:
        rows = comparison.run(watch)
    if as_json:
        typer.echo(json.dumps([_plain(one) for one in rows]))
    else:
        show_comparison(data, plan, rows)
    if plot is not None:
        draw_comparison(rows, plot, f"{plan.model} on {data}, {plan.side} compressed")


def models(as_json: Json = False) -> None:
    """List the models that `train`, `online` and `compare` have.

    Example: celrec models
    """
    from celrec.models.registry import model_summaries

    summaries = model_summaries()
    if as_json:
        typer.echo(json.dumps(summaries))
    else:
        for name, summary in summaries.items():
            typer.echo(f"{name:12}  {summary}")


def embeddings(as_json: Json = False) -> None:
    """List the embedding methods that `train` and `compare` have.

    Example: celrec embeddings
    """
    from celrec.cli.comparison_display import show_methods
    from celrec.embeddings.registry import METHODS

    if as_json:
        typer.echo(json.dumps({name: method.summary for name, method in METHODS.items()}))
    else:
        show_methods()


def _words(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise CelrecError(f"{name} must be words with commas between them, not {text!r}")
    return words


def _plain(one: ComparisonRow) -> dict[str, object]:
    return {**asdict(one), "serving": one.serving}
