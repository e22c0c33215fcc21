"""Eviction of ids that have been idle for long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.data.raw_log import ticks_per_second
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.errors import CelrecError
from celrec.online.known_ids import KnownIds
from celrec.online.trainer import OnlineTrainer
from celrec.recommender.model import Model

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class IdleTime:
    """A number of events of the stream, or a time by the timestamps of its events.

    `ticks_per_second` infers the unit of timestamps; dates are microseconds since 1970.

    >>> IdleTime.parse("1000000"), str(IdleTime.parse("90d"))
    (IdleTime(length=1000000, unit=None), '90d')
    """

    length: int
    unit: str | None = None
    """`d`, `h`, `m` or `s`: days, hours, minutes, seconds; None: events."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.unit not in (None, *_SECONDS):
            raise _unclear(str(self))

    @classmethod
    def parse(cls, text: str) -> IdleTime:
        """From `1000000`, `90d`, `12h`, `30m` or `45s`."""
        found = re.fullmatch(r"([0-9]{1,18})([dhms]?)", text.strip())
        if found is None:
            raise _unclear(text)
        return cls(int(found[1]), found[2] or None)

    def __str__(self) -> str:
        return f"{self.length}{self.unit or ''}"

    def begin(self, now: int) -> int:
        """The start of an idle time that ends now, in timestamps or numbers of events.

        >>> IdleTime(2, "m").begin(1_600_000_000_000)  # in milliseconds
        1599999880000
        """
        if self.unit is None:
            return now - self.length
        return now - self.length * _SECONDS[self.unit] * ticks_per_second(now)


def _unclear(value: str) -> CelrecError:
    return CelrecError(
        "evict_after must be a number of events such as 1000000, or a time such as 90d, 12h, "
        f"30m or 45s, not {value!r}"
    )


SEARCH_EVERY = 10_000  # events between two searches, so that these take little of the time
_LATEST = 101  # timestamps whose median is the current time


class Eviction:
    """Evicts ids that have been idle for longer than `after`.

    A search takes time for all ids. So it is done after as many events as ids remained in the last
    one, at least 10,000: that is constant time per event, and deterministic.

    The current time is the median of the latest 101 timestamps, and no event counts as later, so
    a few wrong clocks do no harm.
    """

    def __init__(self, after: IdleTime | None = None) -> None:
        self.after = after
        self.dropped: dict[str, int] = {}
        """The number of evicted ids, by table."""
        self._next = SEARCH_EVERY
        self._heard = np.empty(0, np.int64)

    def check(self, model: Model, embedding: str) -> None:
        """Raise an error if ids are evicted and a table of the model does not support it."""
        if self.after is None:
            return
        for table in model.whole_tables.values():
            shared = table.shared if isinstance(table, PersonalEmbedding) else table
            if type(shared).keep is Embedding.keep:
                raise CelrecError(
                    f"evict_after: embedding {embedding!r} cannot drop ids, since what an id has "
                    "there depends on its number; leave it out, or take 'cel-lite' or 'full'"
                )

    def moments(self, events: pl.DataFrame, before: int) -> NDArray[np.int64] | None:
        """The moment of each of the next events, after `before` events; None without eviction."""
        if self.after is None or not len(events):
            return None
        if self.after.unit is None:
            return np.arange(before, before + len(events))
        if "timestamp" not in events.columns or events.get_column("timestamp").null_count():
            raise CelrecError(
                f"evict_after {str(self.after)!r} goes by timestamps, and events have none; name "
                "their column (--timestamp-column), or give a number of events"
            )
        times: NDArray[np.int64] = events.get_column("timestamp").to_numpy()
        self._heard = np.concatenate([self._heard, times[-_LATEST:]])[-_LATEST:]
        moments: NDArray[np.int64] = np.minimum(times, self._time())
        return moments

    @property
    def now(self) -> int | None:
        """The current time; None before the first timestamp."""
        return self._time() if len(self._heard) else None

    def look(
        self, tables: Mapping[str, KnownIds], trainer: OnlineTrainer, events: int
    ) -> dict[str, NDArray[np.int64]]:
        """Evict idle ids, if a search is due after this number of `events`.

        Returns the remaining ids, by their old numbers, of the tables that have changed.
        """
        kept: dict[str, NDArray[np.int64]] = {}
        if self.after is None or events < self._next:
            return kept
        now = events - 1 if self.after.unit is None else self._time()
        since = self.after.begin(now)
        for name, table in tables.items():
            heard = table.heard_since(since)
            if gone := len(table.ids) - len(heard):
                trainer.keep(name, heard)
                table.keep(heard)
                self.dropped[name] = self.dropped.get(name, 0) + gone
                kept[name] = heard
        left = sum(len(table.ids) for table in tables.values())
        self._next = events + max(left, SEARCH_EVERY)
        return kept

    def state_dict(self) -> dict[str, Any]:
        """The state, except for the moments of ids."""
        if self.after is None:
            return {}
        return {
            "after": str(self.after),
            "dropped": dict(self.dropped),
            "next": self._next,
            "heard": torch.from_numpy(self._heard),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Eviction:
        """The eviction of a `state_dict`."""
        if not state:
            return cls()
        made = cls(IdleTime.parse(state["after"]))
        made.dropped, made._next = dict(state["dropped"]), int(state["next"])
        made._heard = state["heard"].numpy().copy()
        return made

    def _time(self) -> int:
        middle = (len(self._heard) - 1) // 2
        return int(np.partition(self._heard, middle)[middle])
