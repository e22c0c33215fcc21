"""`celrec evaluate` and `celrec clusters`: looking at what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from celrec.errors import CelrecError

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder of `celrec train --out` or `celrec online --run`."
    ),
]


def evaluate(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]", help="Other interactions; the test part it was trained with if none."
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--k",
            help="Also measure how many of the items that users came to like are among the k that "
            "are recommended: NDCG, recall, MRR, hit rate, coverage.",
        ),
    ] = None,
    relevant: Annotated[
        float | None,
        typer.Option(
            help="With -k, users like what has a target from this one on; if not given, a 1 of 0 "
            "and 1, else --positive of the training, else the mean of all ratings."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a trained model, overall and on cold and warm items.

    Example: celrec evaluate run next-month.csv -k 10
    """
    from rich.console import Console

    from celrec.cli._comparing import show_ranking
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
            raise CelrecError(f"{run}: it does not say what it was tested on; give DATA")
        whole = open_data(source["data"], **reading)
        split = Split.named(trained.plan.prepared(whole), source["fold"], source["seed"])
        learned, log = split.train_and_valid(), split.test
        if not len(log):
            raise CelrecError(f"{run}: no rows were left to test it on; give DATA")
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
    members: Annotated[int, typer.Option(help="How many members to show of each.")] = 5,
    as_json: Json = False,
) -> None:
    """Show the clusters of a trained model, best rated first, with their most active members.

    Example: celrec clusters run --members 10
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from celrec.inference.clusters import cluster_summary
    from celrec.runs.run_folder import load_run

    trained = load_run(run)
    summary = cluster_summary(trained, side, members)
    if as_json:
        typer.echo(json.dumps(summary.to_dicts()))
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("cluster", "members", "interactions", "mean"):
        shown.add_column(header, justify="right")
    shown.add_column("most active members")
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
    if side == "items" and (found := trained.result.get("diagnostics")):
        console.print(_told(found))


def _told(found: dict[str, Any]) -> str:
    """The diagnostics in words, those that there are."""
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
