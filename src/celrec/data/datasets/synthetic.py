"""A small synthetic log with known clusters, which needs no download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from celrec.data.datasets.dataset import Counts, Dataset, Tables
from celrec.data.planted import Planted


def _make(_: Mapping[str, Path]) -> Tables:
    planted = Planted()
    ratings = pl.concat(planted.chunks()).rename({"target": "rating"})
    items = pl.DataFrame({"item": np.arange(planted.items), "cluster": planted.item_cluster})
    return Tables(ratings, items)


SYNTHETIC = Dataset(
    name="synthetic",
    about="Synthetic ratings with 20 planted clusters of items; generated when loaded",
    counts=Counts(100_000, 1_000, 1_700),
    files=(),
    parse=_make,
)
