"""Export of trained runs (ONNX, torch.export, safetensors, codes) and of long tables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import torch
from polars.io.plugins import register_io_source

from celrec.data.id_map import UNSEEN
from celrec.errors import CelrecError
from celrec.inference.codes import code_table, codes_of
from celrec.inference.graph_files import (
    OUTPUT,
    Scorer,
    program_of,
    write_onnx,
    write_program,
    write_safetensors,
)
from celrec.runs.run_folder import Run
from celrec.runtime.atomic import atomic_file, atomic_folder

FORMATS = ("onnx", "pt2", "safetensors")
"""The formats of models."""
CODES = "codes"
"""The format of the codes of ids, without a model."""
_ABOUT = "export.json"
_MEANING = {
    "squared-error": "the target that is expected",
    "cross-entropy": "the probability that the target is 1",
    "ranking": "the higher, the better; of one user's items only the order means something",
}


def export_run(run: Run, path: str | Path, format: str) -> dict[str, Any]:  # noqa: A002
    """Export a run to a folder, written atomically. Returns the content of `export.json`.

    Files:

    - `model.onnx`, `model.pt2` or `model.safetensors`: the model with its clusters;
    - `users.parquet`, `items.parquet` and a `column_N.parquet` for each further id column: the
      `number` of each `id`, which is the input of the model, and for models with histories the
      present `history` of each user;
    - `export.json`: the inputs and the output of the model.

    An earlier export to the same folder is replaced. With the format `codes` there is no model,
    but what `export_codes` writes.
    """
    if format == CODES:
        return export_codes(run, path)
    if format not in FORMATS:
        formats = ", ".join((*FORMATS, CODES))
        raise CelrecError(f"format must be one of {formats}, not {format!r}")
    check_export_place(path)
    scorer = Scorer(run.model)
    about = _description(run, scorer, format)
    text = json.dumps(about, indent=2)
    with atomic_folder(Path(path)) as folder:
        file = folder / about["file"]
        if format == "onnx":
            write_onnx(file, program_of(scorer), text)
        elif format == "pt2":
            write_program(file, program_of(scorer), text)
        else:
            write_safetensors(file, run.model, run.plan, text)
        for name, table in _tables(run).items():
            table.write_parquet(folder / name)
        (folder / _ABOUT).write_text(text)
    return about


def export_codes(run: Run, path: str | Path) -> dict[str, Any]:
    """Write the codes of ids to a folder, atomically. Returns the content of `export.json`.

    Each table that has codes has a file with the columns of `code_table`: `items.parquet`,
    `users.parquet`, and a `column_N.parquet` for each further id column. An earlier export to the
    same folder is replaced.
    """
    check_export_place(path)
    coded = [side for side in run.tables if codes_of(run, side) is not None]
    tables = {side: code_table(run, side) for side in coded or ["items"]}  # complains without
    files = {"users": "users.parquet", "items": "items.parquet"}
    files |= {name: _column_file(number) for number, name in enumerate(run.columns)}
    about = {
        "format": "codes",
        "tables": {
            side: {
                "file": files[side],
                "ids": len(table),
                "clusters": [column.n_unique() for column in table.get_columns()[1:]],
            }
            for side, table in tables.items()
        },
        "versions": {"celrec": version("celrec")},
    }
    with atomic_folder(Path(path)) as folder:
        for side, table in tables.items():
            table.write_parquet(folder / files[side])
        (folder / _ABOUT).write_text(json.dumps(about, indent=2))
    return about


def check_export_place(path: str | Path) -> None:
    """Raise unless `path` is free, an empty folder or an earlier export."""
    folder = Path(path)
    if folder.name in ("", ".."):
        raise CelrecError(f"{path}: an export needs a folder of its own; name a new one")
    names = [*(f"model.{suffix}" for suffix in FORMATS), "items.parquet", "users.parquet"]
    if (folder / _ABOUT).is_file() and any((folder / name).is_file() for name in names):
        return
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise CelrecError(
            f"{path}: exists and is not an export; choose another place (--out FOLDER)"
        )


def _description(run: Run, scorer: Scorer, format: str) -> dict[str, Any]:  # noqa: A002
    inputs: dict[str, dict[str, Any]] = {
        name: {"dtype": "int64", "shape": ["batch", *ids.shape[1:]]}
        for name, ids in scorer.example(1).items()
    }
    inputs["user"]["ids"] = "users.parquet"
    inputs["item"]["ids"] = "items.parquet"
    if "history" in inputs:
        inputs["history"] |= {"ids": "items.parquet", "no item": UNSEEN, "order": "latest last"}
    if "columns" in inputs:
        names = list(run.columns)
        files = [_column_file(number) for number in range(len(names))]
        inputs["columns"] |= {"names": names, "ids": files}
    return {
        "format": format,
        "file": f"model.{format}",
        "model": run.plan.model,
        "embedding": run.plan.embedding,
        "inputs": inputs,
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["batch"],
            "meaning": _MEANING[run.plan.loss],
        },
        "unseen": UNSEEN,
        "versions": {name: version(name) for name in ("celrec", "torch")},
    }


def _tables(run: Run) -> dict[str, pl.DataFrame]:
    users = run.users
    if run.model.history_length:
        latest = run.model.query_batch(torch.arange(len(users))).history
        if latest is not None:
            kind = pl.Array(pl.Int32, run.model.history_length)
            users = users.with_columns(pl.Series("history", latest.int().numpy(), kind))
    tables = {"users.parquet": users, "items.parquet": run.items}
    tables |= {_column_file(n): table for n, table in enumerate(run.columns.values())}
    return {name: table.with_row_index("number") for name, table in tables.items()}


def _column_file(number: int) -> str:
    return f"column_{number}.parquet"


_SINKS: dict[str, Callable[[pl.LazyFrame, Path], object]] = {
    ".csv": pl.LazyFrame.sink_csv,
    ".parquet": pl.LazyFrame.sink_parquet,
}


def check_list_file(path: Path) -> None:
    """Raise if `write_list_file` does not know the suffix of a path."""
    if path.suffix.lower() not in _SINKS:
        raise CelrecError(f"{path}: must end in {' or '.join(_SINKS)}; rename it")


def write_list_file(path: Path, frames: Iterator[pl.DataFrame]) -> int:
    """Write frames one after the other to a CSV or Parquet file, atomically.

    The first frame has the schema of all. Only a few frames are in memory at a time. Returns the
    number of rows.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "lists.csv")
    >>> write_list_file(path, iter([pl.DataFrame({"n": [1, 2]}), pl.DataFrame({"n": [3]})]))
    3
    >>> pl.read_csv(path)["n"].to_list()
    [1, 2, 3]
    """
    check_list_file(path)
    first = next(frames)
    rows = 0

    def source(*_: object) -> Iterator[pl.DataFrame]:
        nonlocal rows
        rows = len(first)
        yield first
        for frame in frames:
            rows += len(frame)
            yield frame

    with atomic_file(path) as temporary:
        lazy = register_io_source(io_source=source, schema=first.schema)
        _SINKS[path.suffix.lower()](lazy, temporary)
    return rows
