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

    from celrec.cli._ranking import rank, show_ranking
    from celrec.cli.train import split_of
    from celrec.data.datasets.library import open_data
    from celrec.data.reading import read
    from celrec.evaluation.measuring import measure
    from celrec.training.run_folder import load_run

    if relevant is not None and k is None:
        raise CelrecError("--relevant is for -k; give both, or none")
    trained = load_run(run, seen=k is not None and data is not None)
    source = trained.source
    reading = source.get("reading", {})
    if data is None:
        if not {"data", "fold", "seed"} <= set(source):
            raise CelrecError(f"{run}: it does not say what it was tested on; give DATA")
        whole = open_data(source["data"], **reading)
        split = split_of(trained.plan.prepared(whole), source["fold"], source["seed"])
        learned, log = split.train_and_valid(), split.test
        if not len(log):
            raise CelrecError(f"{run}: no rows were left to test it on; give DATA")
    else:
        learned, log = None, trained.plan.prepared(open_data(data, **reading))
    columns = list(trained.known.columns)
    events = read(log.to_frame(), like=trained.known, columns=columns)
    counts = trained.items.get_column("interactions").to_numpy()
    accuracy = measure(trained.model, trained.plan, events, counts)
    ranking = None if k is None else rank(trained, events, learned, k, relevant)
    unseen = {
        "users": int((events.user < 0).sum()),
        "items": int((events.item < 0).sum()),
    }
    if as_json:
        result = {"run": str(run), "rows": len(events), "unseen": unseen, "test": accuracy}
        typer.echo(json.dumps(result if ranking is None else {**result, "ranking": ranking}))
        return
    console = Console(highlight=False)
    console.print(
        f"{len(events):,} rows, {unseen['users']:,} with an unseen user, "
        f"{unseen['items']:,} with an unseen item"
    )
    for name, value in accuracy.items():
        if value is not None or name.startswith("mse"):
            console.print(f"{name:9} {'none' if value is None else f'{value:.4f}'}")
    if ranking is not None:
        show_ranking(ranking)


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
    import polars as pl
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from celrec.training.run_folder import load_run

    trained = load_run(run)
    sides = {"items": trained.items, "users": trained.users, **trained.columns}
    if side not in sides:
        raise CelrecError(f"side must be one of {', '.join(sides)}, not {side!r}")
    table = sides[side]
    if "cluster" not in table.columns:
        raise CelrecError(f"{run}: the {side} are not clustered; look at the other --side")
    label = "title" if "title" in table.columns else "id"
    total = (pl.col("mean_target").fill_nan(0) * pl.col("interactions")).sum()
    best = pl.col(label).cast(pl.String).sort_by("interactions", descending=True).head(members)
    summary = (
        table.group_by("cluster")
        .agg(
            members=pl.len(),
            interactions=pl.col("interactions").sum(),
            mean_target=(total / pl.col("interactions").sum()).fill_nan(None),
            examples=best,
        )
        .sort("mean_target", "cluster", descending=[True, False], nulls_last=True)
    )
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
