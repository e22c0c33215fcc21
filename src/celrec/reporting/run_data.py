"""The data, the validation records and the online metrics of a run."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from celrec.data.datasets.library import open_data
from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.errors import CelrecError, first_line
from celrec.evaluation.prequential import Measured, Prequential
from celrec.offline.solver import ValidationRecord
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.run_folder import Run
from celrec.runtime.state_file import load_state


@dataclass(frozen=True)
class RunData:
    """The training and test data of a run, with the ids of the run."""

    split: Split

    @classmethod
    def of(cls, run: Run) -> RunData:
        """Read the data that the run records, and split them as for training.

        Raises an error if the run records none, or if they are missing or have changed.
        """
        source = run.source
        if "events" in run.result:
            raise CelrecError("it was learned from a stream, which has no test part")
        if not {"data", "fold", "seed"} <= set(source):
            raise CelrecError("the run does not record its training and test data")
        whole = open_data(source["data"], **source.get("reading", {}))
        split = Split.named(run.plan.prepared(whole), source["fold"], source["seed"])
        found = cls(split)
        for side, ids, counts in (
            ("users", whole.user_ids.ids, found.learned.user_counts),
            ("items", whole.item_ids.ids, found.learned.item_counts),
        ):
            table: pl.DataFrame = getattr(run, side)
            same = ids.cast(pl.String).equals(table.get_column("id").cast(pl.String))
            if not same or (counts != table.get_column("interactions").to_numpy()).any():
                raise CelrecError(f"{source['data']}: has changed since the run was trained on it")
        return found

    @cached_property
    def learned(self) -> Interactions:
        """Training and validation data."""
        return self.split.train_and_valid()

    @property
    def test(self) -> Interactions:
        """The test data."""
        return self.split.test

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of all interactions."""
        crc = 0
        for log in (self.learned, self.test):
            for column in (log.user, log.item, log.target):
                crc = zlib.crc32(np.ascontiguousarray(column).data, crc)
        return f"{crc:08x}"


NAME = "judgements.parquet"


def read_validation_records(folder: Path) -> dict[str, list[ValidationRecord]]:
    """The records of training by stage; empty for an online run."""
    path = folder / NAME
    if not path.is_file():
        return {}
    try:
        table = pl.read_parquet(path)
        known = [field.name for field in fields(ValidationRecord) if field.name in table.columns]
        stages: dict[str, list[ValidationRecord]] = {}
        for row in table.select("stage", *known).iter_rows(named=True) if len(table) else ():
            stages.setdefault(row.pop("stage"), []).append(ValidationRecord(**row))
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise CelrecError(f"{path}: damaged ({first_line(error)}); train again") from error
    return stages


_STATE = "training.safetensors"


def online_record(folder: Path) -> dict[str, Measured] | None:
    """The metrics of the last checkpoint by slice; None if it has none."""
    found = CheckpointFolder(folder).latest()
    if found is None:
        return None
    metrics = Prequential()
    try:
        metrics.load_state_dict(load_state(found.folder / _STATE)["notes"])
    except (CelrecError, LookupError, TypeError, AttributeError):
        return None  # other programs may write checkpoints without metrics
    return metrics.overall() if metrics.events else None
