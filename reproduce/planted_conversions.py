"""Conversions of planted clusters."""

from __future__ import annotations

import polars as pl

from celrec.data.interactions import Interactions
from celrec.data.reading import read
from reproduce.conversion_stream import ConversionStream


def planted_conversions(
    rows: int = 400_000, users: int = 20_000, items: int = 5_000
) -> Interactions:
    """A stream in which conversions are a matter of the clusters of users and items, as a log.

    Users are in 20 clusters and items in 15, and those of a cluster are alike; a third of them
    appear in the course of the stream. For the rest, see `ConversionStream`.

    >>> log = planted_conversions(rows=1000, users=50, items=20)
    >>> sorted(set(log.target.tolist()))
    [0.0, 1.0]
    """
    stream = ConversionStream(
        events=rows, users=users, items=items, user_clusters=20, item_clusters=15, late=1 / 3
    )
    return read(pl.concat(stream.frames()))
