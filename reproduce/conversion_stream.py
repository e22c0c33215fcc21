"""A stream of conversions of planted clusters, of any length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.data.planted import Planted
from celrec.errors import CelrecError
from celrec.recommender.batch import Batch
from celrec.runtime.jit import compiled


@dataclass(frozen=True)
class ConversionStream:
    """Events whose conversions are a matter of the clusters of users and items.

    The logit of a conversion is b_u + b_i + v_uᵀv_i. Those of clusters are normal, with standard
    deviations `biases` and, in each of `dim` dimensions, `vectors`. An id differs from its
    cluster in all of these by `own` times as much: with 0, the ids of a cluster are alike. Users
    and items are drawn as in `Planted`: independently, with skewed popularity, and a share `late`
    of both appears only in the course of the stream.

    A part of the stream is made when it is asked for: nothing is held but some numbers for each
    id.

    >>> stream = ConversionStream(events=1000, users=50, items=20, user_clusters=4, item_clusters=3)
    >>> first, second = stream.batches(500)
    >>> first.user[:6], first.target[:6]
    (tensor([0, 1, 2, 3, 4, 5]), tensor([0., 1., 1., 0., 0., 1.]))
    """

    events: int
    users: int
    items: int
    user_clusters: int
    item_clusters: int
    late: float = 0.0
    biases: float = 0.3
    vectors: float = 0.8
    dim: int = 8
    own: float = 0.0
    user_skew: float = 0.6
    item_skew: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("biases", "vectors", "own"):
            if not getattr(self, name) >= 0:
                raise CelrecError(f"{name} must not be negative, not {getattr(self, name)}")
        self._planted()  # complains about the others

    def frames(self, size: int = 1 << 20) -> Iterator[pl.DataFrame]:
        """The stream with original ids, `size` events at a time.

        Frames have the columns user, item, target (1 for a conversion) and timestamp. What they
        hold does not depend on `size`.
        """
        planted, rng = self._planted(), np.random.default_rng(self.seed)
        spread = np.array([self.biases, *[self.vectors] * self.dim])
        user_rows = self._rows(self.user_clusters, rng)
        item_rows = self._rows(self.item_clusters, rng)
        for events in planted.chunks(size):
            logits = _logits(
                events.get_column("user").to_numpy(),
                events.get_column("item").to_numpy(),
                planted.user_cluster,
                planted.item_cluster,
                user_rows,
                item_rows,
                self.own * spread,
                self.seed,
            )
            converted = rng.random(len(events)) < 1 / (1 + np.exp(-logits))
            yield events.with_columns(target=converted.astype(np.float32))

    def batches(self, size: int = 1 << 18) -> Iterator[Batch]:
        """The stream with ids numbered from 0 in the order in which they appear."""
        users, items = _Numbering(self.users), _Numbering(self.items)
        for events in self.frames(size):
            yield Batch(
                users.numbers(events.get_column("user")),
                items.numbers(events.get_column("item")),
                torch.from_numpy(events.get_column("target").to_numpy(writable=True)),
            )

    def _planted(self) -> Planted:
        return Planted(
            rows=self.events,
            users=self.users,
            items=self.items,
            dim=self.dim,
            item_clusters=self.item_clusters,
            user_clusters=self.user_clusters,
            noise=0.0,
            user_skew=self.user_skew,
            item_skew=self.item_skew,
            late=self.late,
            seed=self.seed,
        )

    def _rows(self, clusters: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """A bias and a vector for each cluster."""
        biases = rng.normal(scale=self.biases, size=(clusters, 1))
        vectors = rng.normal(scale=self.vectors, size=(clusters, self.dim))
        return np.concatenate([biases, vectors], 1)


class _Numbering:
    """Dense numbers of ids in the order of their appearance."""

    def __init__(self, ids: int) -> None:
        self._known, self._numbers = 0, np.full(ids, -1, np.int32)

    def numbers(self, ids: pl.Series) -> Tensor:
        """The number of each id."""
        dense = np.empty(len(ids), np.int64)
        self._known = _number(ids.to_numpy(), self._numbers, self._known, dense)
        return torch.from_numpy(dense)


@compiled
def _noise(key: np.uint64) -> float:
    """A number near a normal one, with mean 0 and variance 1, for each key another.

    The sum of the four parts of 64 bits that look random (the finaliser of SplitMix64).
    """
    bits = key + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    total = np.int64(0)
    for part in range(4):
        total += np.int64((bits >> np.uint64(16 * part)) & np.uint64(0xFFFF))
    return (total / 65535 - 2) * 3**0.5


@compiled
def _logits(
    user: NDArray[np.int64],
    item: NDArray[np.int64],
    user_cluster: NDArray[np.int32],
    item_cluster: NDArray[np.int32],
    user_rows: NDArray[np.float64],
    item_rows: NDArray[np.float64],
    own: NDArray[np.float64],
    seed: int,
) -> NDArray[np.float64]:
    """b_u + b_i + v_uᵀv_i of each event; `own` is how far ids are from their clusters."""
    logits, width = np.empty(len(user)), len(own)
    first = np.uint64(seed) << np.uint64(40)  # a seed has keys of its own
    for event in range(len(user)):
        u, i = user[event], item[event]
        total = 0.0
        for d in range(width):
            a, b = user_rows[user_cluster[u], d], item_rows[item_cluster[i], d]
            if own[d] > 0:  # users have even keys and items odd ones
                a += own[d] * _noise(first + np.uint64(2 * (u * width + d)))
                b += own[d] * _noise(first + np.uint64(2 * (i * width + d) + 1))
            total += a + b if d == 0 else a * b
        logits[event] = total
    return logits


@compiled
def _number(
    ids: NDArray[np.int64], numbers: NDArray[np.int32], known: int, dense: NDArray[np.int64]
) -> int:
    """Number ids in the order of appearance, new ones from `known` on; how many are known then."""
    for event in range(len(ids)):
        if numbers[ids[event]] < 0:
            numbers[ids[event]] = known
            known += 1
        dense[event] = numbers[ids[event]]
    return known
