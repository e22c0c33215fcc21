"""`celrec evaluate`, `clusters`, `report` and `export`: what is done with a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from celrec.cli.options import Json, RunArgument
from celrec.errors import CelrecError


def evaluate(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]", help="Other interactions; the test data of its training if not given."
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--k",
            help="Also measure the k recommended items of each user: NDCG, recall, MRR, hit rate, "
            "coverage.",
        ),
    ] = None,
    relevant: Annotated[
        float | None,
        typer.Option(
            help="With -k, items with a target from this one on are relevant; if not given, those "
            "with a 1 of 0 and 1, else from --positive of the training, else from the mean on."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a trained model, overall and on cold and warm items.

    Example: celrec evaluate run next-month.csv -k 10
    """
    from rich.console import Console

    from celrec.cli.comparison_display import show_ranking
    from celrec.data.datasets.library import open_data
    from celrec.data.split import Split
    from celrec.estimator.learning import evaluate as evaluated
    from celrec.runs.run_folder import load_run

    if relevant is not None and k is None:
        raise CelrecError("--relevant is for -k; give both, or none")
    trained = load_run(run, seen=k is not None and data is not None)
    source = trained.source
    reading = source.get("reading", {})
    if data is None:
        if not {"data", "fold", "seed"} <= set(source):
            raise CelrecError(f"{run}: it does not record its test data; give DATA")
        whole = open_data(source["data"], **reading)
        split = Split.named(trained.plan.prepared(whole), source["fold"], source["seed"])
        learned, log = split.train_and_valid(), split.test
        if not len(log):
            raise CelrecError(f"{run}: its training had no test data; give DATA")
    else:
        how = {**reading, "need_target": not trained.plan.only_positive}
        learned, log = None, trained.plan.prepared(open_data(data, **how))
    found = evaluated(trained, log, k=k, relevant=relevant, learned=learned)
    if as_json:
        typer.echo(json.dumps({"run": str(run), **found}))
        return
    console, unseen = Console(highlight=False), found["unseen"]
    console.print(
        f"{found['rows']:,} rows, {unseen['users']:,} with an unseen user, "
        f"{unseen['items']:,} with an unseen item"
    )
    for name, value in found["test"].items():
        if value is not None or name.startswith("mse"):
            console.print(f"{name:9} {'none' if value is None else f'{value:.4f}'}")
    if k is not None:
        show_ranking(found["ranking"])


def clusters(
    run: RunArgument,
    side: Annotated[
        str, typer.Option(help="items, users, or the name of a further column.")
    ] = "items",
    level: Annotated[
        int, typer.Option(help="Which level, from 1, where vectors are sums of rows of several.")
    ] = 1,
    members: Annotated[int, typer.Option(help="How many members to show of each.")] = 5,
    as_json: Json = False,
) -> None:
    """Show the clusters of a trained model, best rated first, with their most active members.

    Example: celrec clusters run --members 10
    """
    from rich.console import Console

    from celrec.cli.terminal import ruled_table
    from celrec.inference.explanation import cluster_summary
    from celrec.runs.run_folder import load_run

    trained = load_run(run)
    summary = cluster_summary(trained, side, members, level)
    if as_json:
        typer.echo(json.dumps(summary.to_dicts()))
        return
    numbers = ("cluster", "members", "interactions", "mean")
    shown = ruled_table(*numbers, "most active members", numbers=numbers)
    for row in summary.iter_rows(named=True):
        shown.add_row(
            str(row["cluster"]),
            f"{row['members']:,}",
            f"{row['interactions']:,}",
            "none" if row["mean_target"] is None else f"{row['mean_target']:.2f}",
            " · ".join(row["examples"]),
        )
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(shown)
    if side == "items" and level == 1 and (found := trained.result.get("diagnostics")):
        console.print(_diagnostics_text(found))


def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; report.html in the run folder if none.")
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference/--no-reference",
            help="Compare with a full embedding, which is trained once and kept in the run folder.",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a run: metrics, learning curves, memory and clusters.

    It opens in any browser and needs no network.

    Example: celrec report run
    """
    from rich.console import Console

    from celrec.cli.training_display import training_progress
    from celrec.inference.top_items import best_items
    from celrec.reporting.report import write_report

    written = write_report(
        run,
        best_items,
        out=out,
        reference=reference,
        watched=training_progress,
    )
    if as_json:
        typer.echo(json.dumps(written.as_dict()))
        return
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if written.comparison.missing:
        console.print(f"nothing was measured on test data: {written.comparison.missing}")
    console.print(f"{written.path}  ({written.size / 1000:,.0f} kB)")


def export(
    run: RunArgument,
    format: Annotated[  # noqa: A002
        str,
        typer.Option(
            help="onnx, pt2 (a program of torch.export), or safetensors; or codes: only the "
            "clusters of ids, in each level."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write; if not given, RUN-onnx and the like beside RUN."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a trained model for other programs, with the clusters of all ids inside.

    The folder holds the model, tables of the numbers of users and items, and export.json with the
    inputs and outputs. The number of an unknown id is -1; it has the prediction of a new one.

    With codes, it holds a table for the items, and for others that share rows, with the columns id,
    code_1, code_2, ...: semantic ids, where similar ids have equal first codes.

    Example: celrec export run --format onnx

    Example: celrec export run --format pt2 --out model

    Example: celrec export run --format codes
    """
    from celrec.inference.export import CODES, export_run
    from celrec.runs.run_folder import load_run

    folder = out or run.absolute().with_name(f"{run.absolute().name}-{format}")
    about = export_run(load_run(run), folder, format)
    if format == CODES:
        if as_json:
            typer.echo(json.dumps({"run": str(run), "out": str(folder), **about}))
            return
        for side, table in about["tables"].items():
            clusters = " × ".join(f"{count:,}" for count in table["clusters"])
            typer.echo(f"{folder / table['file']}: {table['ids']:,} {side}, {clusters} clusters")
        return
    file = folder / about["file"]
    size = file.stat().st_size
    if as_json:
        typer.echo(json.dumps({"run": str(run), "out": str(folder), "bytes": size, **about}))
    else:
        inputs = ", ".join(about["inputs"])
        typer.echo(f"{file}: {size:,} bytes, from {inputs} to {about['output']['name']}")
        typer.echo(f"Numbers of users and items, inputs and outputs: {folder / 'export.json'}")


def _diagnostics_text(found: dict[str, Any]) -> str:
    words = [f"duplicate rows: {found['duplicate_rows']:,}"]
    words.append(f"rows outside the central region: {found['outside_central']:.0%}")
    if found["rating_spread"] is not None:
        words.append(
            f"standard deviation of ratings: {found['rating_spread']:.2f} in a cluster, "
            f"{found['rating_spread_overall']:.2f} overall"
        )
    if found["genre_entropy_normalised"] is not None:
        words.append(
            f"entropy of genres over clusters: {found['genre_entropy']:.2f}, "
            f"{found['genre_entropy_normalised']:.0%} of the most it could be"
        )
    if found["eigenvalue_ratio"] is not None:
        words.append(
            "largest eigenvalue of a large cluster's gradients over the second, median: "
            f"{found['eigenvalue_ratio']:.1f}"
        )
    return "\n".join(words)
