"""`celrec compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celrec.cli.options import Json, Options, takes_options
from celrec.config.options import COMPARE, given_plan_options
from celrec.errors import CelrecError

if TYPE_CHECKING:
    from celrec.evaluation.comparison import ComparisonRow


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
