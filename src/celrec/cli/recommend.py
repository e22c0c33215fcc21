"""`celrec recommend` and `celrec similar`: the best items for users, and similar items."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celrec.cli.options import Json, RunArgument
from celrec.errors import CelrecError

if TYPE_CHECKING:
    import polars as pl

Number = Annotated[int, typer.Option("-k", "--k", help="How many items.")]


def recommend(
    run: RunArgument,
    user: Annotated[str | None, typer.Option(help="The id of a user.")] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            help="A file of users: one id in a line, or the first column of a csv, tsv or parquet "
            "file; with --out."
        ),
    ] = None,
    k: Number = 10,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the recommendations for --users to this csv or parquet file."),
    ] = None,
    allowed: Annotated[
        Path | None, typer.Option(help="A file of items, as --users: recommend no others.")
    ] = None,
    banned: Annotated[
        Path | None, typer.Option(help="A file of items, as --users: recommend none of them.")
    ] = None,
    with_seen: Annotated[
        bool, typer.Option("--with-seen", help="Also recommend items that a user has seen already.")
    ] = False,
    ties: Annotated[
        str,
        typer.Option(
            help="Which of several items with the same score come first, such as those of a "
            "cluster: by popularity or by recency."
        ),
    ] = "popularity",
    as_json: Json = False,
) -> None:
    """Recommend the best items that a user has not seen.

    Unknown users get the recommendations of a new user.

    Example: celrec recommend run --user 42 -k 5

    Example: celrec recommend run --users all.txt --out recommended.parquet
    """
    from celrec.data.reading import read_id_file
    from celrec.inference.export import check_list_file
    from celrec.inference.top_items import TopItems
    from celrec.runs.run_folder import load_run

    if (user is None) == (users is None):
        raise CelrecError("give one of --user ID and --users FILE")
    if (users is None) != (out is None):
        raise CelrecError("--users FILE and --out FILE go together; give both, or --user ID")
    if out is not None:
        check_list_file(out)
    trained = load_run(run, seen=not with_seen or ties == "recency")
    top = TopItems(
        trained,
        ties=ties,
        allowed=None if allowed is None else read_id_file(allowed),
        banned=None if banned is None else read_id_file(banned),
    )
    ids = [user] if users is None else read_id_file(users)
    unknown = int((trained.known.user_ids.encode(ids) < 0).sum())
    if unknown:
        who = f"user {user!r} is" if users is None else f"{unknown:,} of {len(ids):,} users are"
        typer.echo(
            f"celrec: {who} not known; the recommendations are those of a new user", err=True
        )
    if users is None or out is None:
        found = top.recommend(ids, k, with_seen=with_seen)
        if as_json:
            about = {"user": _id(found, "user", user), "known": not unknown}
            typer.echo(json.dumps({**about, "recommended": _answers(found, "item").to_dicts()}))
        else:
            _show(_answers(found, "item"))
        return
    rows = _write(out, top.in_parts(ids, k, with_seen=with_seen), len(ids))
    if as_json:
        about = {"users": len(ids), "unknown": unknown, "rows": rows, "out": str(out)}
        typer.echo(json.dumps(about))
    else:
        typer.echo(f"{rows:,} recommendations for {len(ids):,} users in {out}")


def similar(
    run: RunArgument,
    item: Annotated[str, typer.Option(help="The id of an item.")],
    k: Number = 10,
    as_json: Json = False,
) -> None:
    """Show the most similar items: those of the same cluster, then of the nearest clusters.

    Example: celrec similar run --item 50 -k 5
    """
    from celrec.inference.top_items import TopItems
    from celrec.runs.run_folder import load_run

    found = TopItems(load_run(run)).similar([item], k)
    answers = _answers(found, "similar")
    if as_json:
        typer.echo(json.dumps({"item": _id(found, "item", item), "similar": answers.to_dicts()}))
    else:
        _show(answers)


def _id(found: pl.DataFrame, column: str, given: str | None) -> object:
    """The id in a result, which is a number if ids are; else the given one."""
    return found.get_column(column)[0] if len(found) else given


def _answers(found: pl.DataFrame, column: str) -> pl.DataFrame:
    items = found.get_column(column).alias("item")
    return found.select(items, "score", *(["title"] if "title" in found.columns else []))


def _show(answers: pl.DataFrame) -> None:
    from rich.console import Console

    from celrec.cli.terminal import ruled_table

    table = ruled_table("", *answers.columns, numbers=("", "score"))
    for place, (item, score, *title) in enumerate(answers.iter_rows(), 1):
        table.add_row(str(place), str(item), f"{score:.3f}", *map(str, title))
    Console(highlight=False, markup=False, emoji=False).print(table)


def _write(path: Path, frames: Iterator[pl.DataFrame], users: int) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from celrec.cli.terminal import progress_bar
    from celrec.inference.export import write_list_file

    columns = (TextColumn("users"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as bar:
        task = bar.add_task("users", total=users)

        def counted() -> Iterator[pl.DataFrame]:
            for frame in frames:
                bar.advance(task, frame.get_column("user").n_unique())
                yield frame

        return write_list_file(path, counted())
