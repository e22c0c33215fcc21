"""Conversions of planted clusters."""

from __future__ import annotations

import numpy as np
import polars as pl

from celrec.data.interactions import Interactions
from celrec.data.planted import Planted
from celrec.data.reading import read

_BIASES, _VECTORS, _DIM = 0.3, 0.8, 8


def planted_conversions(
    rows: int = 400_000, users: int = 20_000, items: int = 5_000
) -> Interactions:
    """A stream in which conversions are a matter of the clusters of users and items.

    Users are in 20 clusters and items in 15; a third of them appear in the course of the
    stream. The logit of a conversion is b_u + b_i + v_uᵀv_i, all of clusters: biases with
    standard deviation 0.3, vectors with 0.8 in each of 8 dimensions.

    >>> log = planted_conversions(rows=1000, users=50, items=20)
    >>> sorted(set(log.target.tolist()))
    [0.0, 1.0]
    """
    stream = Planted(
        rows=rows, users=users, items=items, user_clusters=20, item_clusters=15, late=1 / 3
    )
    events = pl.concat(stream.chunks())
    rng = np.random.default_rng(0)
    logits = np.zeros(len(events))
    vectors = []
    for name, cluster in (("user", stream.user_cluster), ("item", stream.item_cluster)):
        mine = cluster[events[name].to_numpy()]
        count = int(cluster.max()) + 1
        logits += rng.normal(scale=_BIASES, size=count)[mine]
        vectors.append(rng.normal(scale=_VECTORS, size=(count, _DIM))[mine])
    logits += (vectors[0] * vectors[1]).sum(1)
    converted = rng.random(len(events)) < 1 / (1 + np.exp(-logits))
    return read(events.with_columns(target=converted.astype(np.float32)))
