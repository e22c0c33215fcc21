"""Synthetic logs of any size with known clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.data.reading import read
from celrec.errors import CelrecError

_BLOCK = 1 << 16  # events with one random generator
_MEAN = 3.5
_START, _SECONDS = 1_600_000_000, 365 * 24 * 3600


@dataclass(frozen=True)
class Planted:
    """A stream of ratings X = A·B_qᵀ·S_qᵀ + noise, with planted clusters of items.

    A (users × `dim`) and B_q (`item_clusters` × `dim`) are from an exponential distribution,
    scaled to a mean rating of about 3.5. S_q assigns every item to a cluster; no cluster is empty.
    With `user_clusters`, the rows of A are shared in the same way. Ratings are not rounded or
    clipped: without noise the log has exactly rank `dim`.

    Users and items are drawn independently with popularity ∝ rank^−skew. A share `late` of both
    first appears during the stream, at random moments. With `drift`, the cluster rows move:
    B_q(t) = (1 − drift·t)·B_q + drift·t·B_q′ for t from 0 to 1.

    Every block of 65,536 events has its own random generator, so any part of the stream can be
    generated separately, and a stream of 10⁹ events takes no more memory than its ids.

    >>> planted = Planted(rows=1000, users=50, items=30, item_clusters=4, noise=0.0)
    >>> log = planted.interactions()
    >>> log
    Interactions(1,000 rows, 50 users, 30 items)
    >>> truth = planted.expected(log.to_frame())
    >>> bool(np.allclose(log.target, truth))
    True
    """

    rows: int = 100_000
    users: int = 1_000
    items: int = 1_700
    dim: int = 8
    item_clusters: int = 20
    user_clusters: int | None = None
    noise: float = 0.5
    user_skew: float = 0.6
    item_skew: float = 0.9
    late: float = 0.0
    drift: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, limit in (("item_clusters", self.items), ("user_clusters", self.users)):
            clusters = getattr(self, name)
            if clusters is not None and not 1 <= clusters <= limit:
                raise CelrecError(f"{name} must lie in 1 … {limit:,}, not {clusters}")
        for name in ("rows", "users", "items", "dim"):
            if getattr(self, name) < 1:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("late", "drift"):
            if not 0 <= getattr(self, name) <= 1:
                raise CelrecError(f"{name} must lie in [0, 1], not {getattr(self, name)}")
        if self.late == 1:
            raise CelrecError("late must be below 1, since the stream needs ids at its start")

    @cached_property
    def user_cluster(self) -> NDArray[np.int32]:
        """The cluster of every user; without `user_clusters` each user has its own."""
        return self._assignment(self.users, self.user_clusters, "user cluster")

    @cached_property
    def item_cluster(self) -> NDArray[np.int32]:
        """S_q: the cluster of every item."""
        return self._assignment(self.items, self.item_clusters, "item cluster")

    @cached_property
    def user_rows(self) -> NDArray[np.float32]:
        """The rows of A, one per user cluster."""
        return self._rows(self.user_clusters or self.users, "user rows")

    @cached_property
    def item_rows(self) -> NDArray[np.float32]:
        """B_q at the start of the stream."""
        return self._rows(self.item_clusters, "item rows")

    @cached_property
    def item_rows_at_end(self) -> NDArray[np.float32]:
        """B_q′, which B_q drifts towards."""
        return self._rows(self.item_clusters, "item rows at end")

    def interactions(self) -> Interactions:
        """The whole stream in memory."""
        return read(pl.concat(self.chunks()))

    def chunks(self, size: int = 1 << 20, start: int = 0) -> Iterator[pl.DataFrame]:
        """The stream from event `start` on, in frames of `size` events with original ids.

        The columns are user, item, target and timestamp (seconds, non-decreasing). The events do
        not depend on `size`.
        """
        if size < 1:
            raise CelrecError(f"size must be positive, not {size}")
        for first in range(start, self.rows, size):
            yield self._events(first, min(first + size, self.rows))

    def expected(self, events: pl.DataFrame) -> NDArray[np.float32]:
        """The ratings without noise of events of this stream."""
        moment = (events.get_column("timestamp").to_numpy() - _START) / _SECONDS
        user, item = events.get_column("user").to_numpy(), events.get_column("item").to_numpy()
        return self._ratings(user, item, moment)

    def _events(self, first: int, last: int) -> pl.DataFrame:
        blocks = range(first // _BLOCK, (last - 1) // _BLOCK + 1)
        made = pl.concat([self._block(block) for block in blocks])
        return made[first - blocks.start * _BLOCK : last - blocks.start * _BLOCK]

    def _block(self, block: int) -> pl.DataFrame:
        rng = np.random.default_rng([self.seed, 1, block])
        event = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, self.rows))
        timestamp = _START + event * _SECONDS // self.rows
        moment = (timestamp - _START) / _SECONDS
        user = self._draw(rng, moment, self.user_skew, *self._orders["user"])
        item = self._draw(rng, moment, self.item_skew, *self._orders["item"])
        rating = self._ratings(user, item, moment)
        if self.noise:
            rating += rng.normal(scale=self.noise, size=len(event)).astype(np.float32)
        return pl.DataFrame({"user": user, "item": item, "target": rating, "timestamp": timestamp})

    def _ratings(
        self, user: NDArray[np.int64], item: NDArray[np.int64], moment: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        cluster = self.item_cluster[item]
        rows = self.item_rows[cluster]
        if self.drift:
            moved = (self.drift * moment)[:, None].astype(np.float32)
            rows = rows + moved * (self.item_rows_at_end[cluster] - rows)
        ratings: NDArray[np.float32] = np.einsum(
            "ed,ed->e", self.user_rows[self.user_cluster[user]], rows
        )
        return ratings

    @cached_property
    def _orders(self) -> dict[str, tuple[NDArray[np.int32], NDArray[np.float32] | None]]:
        """The ids of users and of items by popularity, and when each arrives."""
        return {
            name: (
                self._rng(f"{name} order").permutation(count).astype(np.int32),
                self._arrival(count, f"{name} arrival"),
            )
            for name, count in (("user", self.users), ("item", self.items))
        }

    def _draw(
        self,
        rng: np.random.Generator,
        moment: NDArray[np.float64],
        skew: float,
        order: NDArray[np.int32],
        arrival: NDArray[np.float32] | None,
    ) -> NDArray[np.int64]:
        """Ids with popularity ∝ rank^−skew among those that have arrived, by rejection."""
        ids = order[_power_law(rng.random(len(moment)), len(order), skew)].astype(np.int64)
        if arrival is not None:
            early = np.flatnonzero(arrival[ids] > moment)
            while len(early):
                ranks = _power_law(rng.random(len(early)), len(order), skew)
                ids[early] = order[ranks]
                early = early[arrival[ids[early]] > moment[early]]
        return ids

    def _arrival(self, count: int, purpose: str) -> NDArray[np.float32] | None:
        if not self.late:
            return None
        rng = self._rng(purpose)
        arrival = rng.random(count, dtype=np.float32)
        arrival[rng.permutation(count)[: max(1, round(count * (1 - self.late)))]] = 0
        return arrival

    def _assignment(self, count: int, clusters: int | None, purpose: str) -> NDArray[np.int32]:
        if clusters is None:
            return np.arange(count, dtype=np.int32)
        rng = self._rng(purpose)
        assigned = rng.integers(clusters, size=count, dtype=np.int32)
        assigned[rng.permutation(count)[:clusters]] = np.arange(clusters)
        return assigned

    def _rows(self, count: int, purpose: str) -> NDArray[np.float32]:
        rows = self._rng(purpose).standard_exponential((count, self.dim), dtype=np.float32)
        return rows * np.float32(np.sqrt(_MEAN / self.dim))

    def _rng(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, 0, *purpose.encode()])


def _power_law(uniform: NDArray[np.float64], count: int, skew: float) -> NDArray[np.int64]:
    """Ranks 0 … count−1 with density ∝ (rank + 1)^−skew, by inverting the integral.

    No table of probabilities is needed, even for a hundred million ids.
    """
    if abs(skew - 1) < 1e-9:
        position = np.exp(uniform * np.log(count + 1))
    else:
        power = 1 - skew
        position = (1 + uniform * ((count + 1) ** power - 1)) ** (1 / power)
    ranks: NDArray[np.int64] = np.clip(position.astype(np.int64) - 1, 0, count - 1)
    return ranks
