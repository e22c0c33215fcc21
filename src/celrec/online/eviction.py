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
    """So many events of the stream, or so much time by the timestamps of its events.

    Those are numbers of which `ticks_per_second` tells the unit. Dates are microseconds since
    1970, and are taken for such from March 1973 on.

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
        """When a silence began that is as long by now, in timestamps or numbers of events.

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


_LEAST = 10_000  # events between two looks: to learn these takes far longer than to look at few ids
_HEARD = 101  # timestamps that tell the time


class Eviction:
    """Now and then looks for ids that have been silent for longer than `after`, and drops them.

    To look and to drop takes time for all ids. So it is done after the batch by which as many
    events have come since the last look as ids were left then, and 10,000 at least: that is some
    constant time for each event, and depends on nothing but the events and their batches.

    The time is the median of the latest 101 timestamps, and no event counts as later than it:
    so a few wrong clocks make nobody silent, and nobody heard of for ever.
    """

    def __init__(self, after: IdleTime | None = None) -> None:
        """None: nobody is dropped."""
        self.after = after
        self.dropped: dict[str, int] = {}
        """How many ids were dropped so far, by table."""
        self._next = _LEAST
        self._heard = np.empty(0, np.int64)

    def check(self, model: Model, embedding: str) -> None:
        """Complain if ids are to be dropped and a table of the model cannot do that."""
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
        """When each of the next events happened; `before` is how many there were before them.

        None if nobody asks for it.
        """
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
        self._heard = np.concatenate([self._heard, times[-_HEARD:]])[-_HEARD:]
        moments: NDArray[np.int64] = np.minimum(times, self._time())
        return moments

    @property
    def now(self) -> int | None:
        """The time that it goes by; None if it does not go by one, or has heard of none yet."""
        return self._time() if len(self._heard) else None

    def look(
        self, tables: Mapping[str, KnownIds], trainer: OnlineTrainer, events: int
    ) -> dict[str, NDArray[np.int64]]:
        """Drop those who have been silent for too long, if it is time to look for them.

        So many `events` have come, those that were drawn for training not counted.
        Gives who is left, by their old numbers, of the tables that have lost somebody.
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
        self._next = events + max(left, _LEAST)
        return kept

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, but for the moments of the ids."""
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
        """What `state_dict` was taken of."""
        if not state:
            return cls()
        made = cls(IdleTime.parse(state["after"]))
        made.dropped, made._next = dict(state["dropped"]), int(state["next"])
        made._heard = state["heard"].numpy().copy()
        return made

    def _time(self) -> int:
        middle = (len(self._heard) - 1) // 2
        return int(np.partition(self._heard, middle)[middle])
