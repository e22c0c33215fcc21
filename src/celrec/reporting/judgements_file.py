"""The judgements of a run folder."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import polars as pl

from celrec.errors import CelrecError
from celrec.training.judgement import Judgement

NAME = "judgements.parquet"


def read_judgements(folder: Path) -> dict[str, list[Judgement]]:
    """What was noted while a run was trained, by stage; nothing for an online run."""
    path = folder / NAME
    if not path.is_file():
        return {}
    try:
        table = pl.read_parquet(path)
        known = [field.name for field in fields(Judgement) if field.name in table.columns]
        stages: dict[str, list[Judgement]] = {}
        for row in table.select("stage", *known).iter_rows(named=True) if len(table) else ():
            stages.setdefault(row.pop("stage"), []).append(Judgement(**row))
    except (pl.exceptions.PolarsError, TypeError) as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(f"{path}: damaged ({problem}); train again") from error
    return stages
