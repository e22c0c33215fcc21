"""`celrec export`: a trained model for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from celrec.cli.runs import Json, RunArgument


def export(
    run: RunArgument,
    format: Annotated[  # noqa: A002
        str, typer.Option(help="onnx, pt2 (a program of torch.export), or safetensors.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write; if not given, RUN-onnx and the like beside RUN."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a trained model for other programs, with the clusters of all ids inside.

    The folder holds the model, tables that tell by which number it knows each user and item, and
    export.json: what goes in and what comes out. Whoever is in no table is -1, and gets what the
    model has for newcomers.

    Example: celrec export run --format onnx

    Example: celrec export run --format pt2 --out model
    """
    from celrec.inference.export import export_run
    from celrec.runs.run_folder import load_run

    folder = out or run.absolute().with_name(f"{run.absolute().name}-{format}")
    about = export_run(load_run(run), folder, format)
    file = folder / about["file"]
    size = file.stat().st_size
    if as_json:
        typer.echo(json.dumps({"run": str(run), "out": str(folder), "bytes": size, **about}))
    else:
        inputs = ", ".join(about["inputs"])
        typer.echo(f"{file}: {size:,} bytes, from {inputs} to {about['output']['name']}")
        typer.echo(f"Numbers of users and items, and how to ask: {folder / 'export.json'}")
