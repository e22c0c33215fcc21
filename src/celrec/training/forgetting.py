"""Dropping ids of which nothing was heard for long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.embeddings.embedding import Embedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.errors import CelrecError
from celrec.training.id_model import IdModel
from celrec.training.known_ids import KnownIds
from celrec.training.online_trainer import OnlineTrainer
from celrec.training.silence import Silence

_LEAST = 10_000  # events between two looks: to learn these takes far longer than to look at few ids
_HEARD = 101  # timestamps that tell the time


class Forgetting:
    """Now and then looks for ids that have been silent for longer than `after`, and drops them.

    To look and to drop takes time for all ids. So it is done after the batch by which as many
    events have come since the last look as ids were left then, and 10,000 at least: that is some
    constant time for each event, and depends on nothing but the events and their batches.

    The time is the median of the latest 101 timestamps, and no event counts as later than it:
    so a few wrong clocks make nobody silent, and nobody heard of for ever.
    """

    def __init__(self, after: Silence | None = None) -> None:
        """None: nobody is dropped."""
        self.after = after
        self.dropped: dict[str, int] = {}
        """How many ids were dropped so far, by table."""
        self._next = _LEAST
        self._heard = np.empty(0, np.int64)

    def check(self, model: IdModel, embedding: str) -> None:
        """Complain if ids are to be dropped and a table of the model cannot do that."""
        if self.after is None:
            return
        for table in model.whole_tables.values():
            shared = table.shared if isinstance(table, PersonalEmbedding) else table
            if type(shared).keep is Embedding.keep:
                raise CelrecError(
                    f"forget_after: embedding {embedding!r} cannot drop ids, since what an id has "
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
                f"forget_after {str(self.after)!r} goes by timestamps, and events have none; name "
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
    def from_state(cls, state: Mapping[str, Any]) -> Forgetting:
        """What `state_dict` was taken of."""
        if not state:
            return cls()
        made = cls(Silence.parse(state["after"]))
        made.dropped, made._next = dict(state["dropped"]), int(state["next"])
        made._heard = state["heard"].numpy().copy()
        return made

    def _time(self) -> int:
        middle = (len(self._heard) - 1) // 2
        return int(np.partition(self._heard, middle)[middle])
