"""The data of a run, read again."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from celrec.data.datasets.library import open_data
from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.errors import CelrecError
from celrec.training.run_folder import Run


@dataclass(frozen=True)
class RunData:
    """What a run was trained and tested on, with the numbers of ids that the run has."""

    split: Split

    @classmethod
    def of(cls, run: Run) -> RunData:
        """Read the data where the run says that they are, and split them as it was done then.

        Complains where that cannot be: the run does not say, they are gone, or they have changed.
        """
        source = run.source
        if "events" in run.result:
            raise CelrecError("it was learned from a stream, which has no test part")
        if not {"data", "fold", "seed"} <= set(source):
            raise CelrecError("the run does not say what it was trained and tested on")
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
        """What nothing was learned from."""
        return self.split.test

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of all interactions."""
        crc = 0
        for log in (self.learned, self.test):
            for column in (log.user, log.item, log.target):
                crc = zlib.crc32(np.ascontiguousarray(column).data, crc)
        return f"{crc:08x}"
