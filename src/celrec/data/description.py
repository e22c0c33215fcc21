"""Summary statistics of a log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.data.raw_log import ticks_per_second

COLD_LIMITS = (2, 5, 20)
POPULARITY_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
_MOST_BARS = 12


@dataclass(frozen=True, slots=True)
class Description:
    """Counts, targets, cold ids, time span and popularity of a log.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 1, 2, 2], "item": [7, 8, 7, 7], "rating": [5, 3, 4, 4]})
    >>> about = Description.of(log)
    >>> about.rows, about.users, about.items, about.repeated_pairs
    (4, 2, 2, 1)
    >>> about.density
    0.75
    >>> about.histogram
    ((3.0, 3.0, 1), (4.0, 4.0, 2), (5.0, 5.0, 1))
    """

    rows: int
    users: int
    items: int
    density: float
    """Distinct pairs divided by users × items."""
    repeated_pairs: int
    """Rows whose pair of user and item occurs in an earlier row."""
    dropped: int
    target_mean: float
    target_std: float
    target_min: float
    target_max: float
    histogram: tuple[tuple[float, float, int], ...]
    """(from, to, rows) of every value, or of equal intervals if there are many values."""
    cold_users: dict[int, int]
    """The number of users with at most 2, 5 and 20 interactions."""
    cold_items: dict[int, int]
    popularity: dict[float, float]
    """The share of interactions with the most popular 1, 5, 10, 20 and 50 % of items."""
    first: str | None
    """The earliest and the latest timestamp in ISO 8601, None without timestamps."""
    last: str | None
    user_features: tuple[str, ...]
    item_features: tuple[str, ...]

    @classmethod
    def of(cls, log: Interactions) -> Description:
        """The description of `log`."""
        users, items = log.user_counts, log.item_counts
        users, items = users[users > 0], items[items > 0]
        pairs = np.sort(log.user.astype(np.int64) << 32 | log.item.astype(np.int64))
        repeated = int(np.count_nonzero(pairs[1:] == pairs[:-1]))
        time = log.timestamp
        return cls(
            rows=len(log),
            users=len(users),
            items=len(items),
            density=(len(log) - repeated) / max(len(users) * len(items), 1),
            repeated_pairs=repeated,
            dropped=log.dropped,
            target_mean=float(np.mean(log.target, dtype=np.float64)),
            target_std=float(np.std(log.target, dtype=np.float64)),
            target_min=float(log.target.min()),
            target_max=float(log.target.max()),
            histogram=_histogram(log.target),
            cold_users={limit: int(np.count_nonzero(users <= limit)) for limit in COLD_LIMITS},
            cold_items={limit: int(np.count_nonzero(items <= limit)) for limit in COLD_LIMITS},
            popularity=_popularity(items),
            first=None if time is None else _as_date(int(time.min())),
            last=None if time is None else _as_date(int(time.max())),
            user_features=_names(log.user_features),
            item_features=_names(log.item_features),
        )


def _names(features: object) -> tuple[str, ...]:
    return tuple(getattr(features, "columns", ()))


def _histogram(target: NDArray[np.float32]) -> tuple[tuple[float, float, int], ...]:
    values, counts = np.unique(target, return_counts=True)
    if len(values) <= _MOST_BARS:
        return tuple((float(v), float(v), int(c)) for v, c in zip(values, counts, strict=True))
    rows, edges = np.histogram(target, bins=10)
    spans = zip(edges[:-1], edges[1:], rows, strict=True)
    return tuple((float(low), float(high), int(count)) for low, high, count in spans)


def _popularity(counts: NDArray[np.int64]) -> dict[float, float]:
    cumulative = np.cumsum(np.sort(counts)[::-1])
    return {
        share: float(cumulative[max(round(share * len(counts)), 1) - 1] / cumulative[-1])
        for share in POPULARITY_SHARES
    }


def _as_date(time: int) -> str:
    seconds = time / ticks_per_second(time)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
