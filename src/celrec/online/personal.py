"""Rows of their own for ids that have had events enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.embeddings.personal import PersonalEmbedding
from celrec.online.row_descent import Descending, RowDescent
from celrec.online.table_trainer import Judge, OnlineSide, Tangent
from celrec.recommender.batch import Batch
from celrec.runtime.memory_budget import Room


class PersonalSide(OnlineSide):
    """What is shared is learned as ever; ids with more than `above` events differ from it.

    What an id differs by is drawn to 0 as the penalty of `how` says, so that its vector is
    drawn to what it shares: L + l2/2·‖own vector − shared vector‖² for each lookup.
    """

    def __init__(
        self,
        inner: OnlineSide,
        table: PersonalEmbedding,
        how: Descending,
        above: int,
        place: int,
        room: Room | None = None,
    ) -> None:
        """`place` is that of the table among all of the model."""
        super().__init__(inner.name, table)
        self._inner, self._personal, self._above, self._place = inner, table, above, place
        self.by_tangent = inner.by_tangent
        self._descent = RowDescent(table.offset, how, room)
        self._looked_up = torch.empty(0, dtype=torch.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        """See `OnlineSide`."""
        return self._inner.counts

    def begin(self) -> None:
        """See `OnlineSide`."""
        self._inner.begin()

    @torch.no_grad()
    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        self._looked_up = self._personal.own_of(ids)
        return self._inner.lookup(ids) + self._personal.offsets(ids)

    def learn(self, gradients: Tensor) -> None:
        """See `OnlineSide`."""
        has = self._looked_up >= 0
        if bool(has.any()):
            self._descent.step(self._looked_up[has], gradients[has])
        self._inner.learn(gradients)

    def without(self, batch: Batch, vectors: Mapping[str, Tensor], judge: Judge) -> Tensor:
        """See `OnlineSide`."""
        offsets = self._personal.offsets(batch.ids()[self._place])
        shared = self._inner.without(batch, vectors, _Shifted(judge, self._personal, self._place))
        return shared + offsets

    def observe(
        self,
        batch: Batch,
        ids: Tensor,
        vectors: Mapping[str, Tensor],
        judge: Judge,
        *,
        again: bool,
        tangent: Tangent | None = None,
    ) -> None:
        """What is shared is judged with what each id differs by."""
        shifted = _Shifted(judge, self._personal, self._place)
        if tangent is not None:
            tangent = tangent._replace(vector=tangent.vector - self._personal.offsets(ids))
        self._inner.observe(batch, ids, vectors, shifted, again=again, tangent=tangent)
        warm = ids[torch.from_numpy(self.counts[ids.numpy()] > self._above)]
        warm = warm[self._personal.own_of(warm) < 0]
        if len(warm):
            self._personal.give(warm)

    def latest(self, ids: NDArray[np.int64]) -> Batch | None:
        """See `OnlineSide`."""
        return self._inner.latest(ids)

    def sweep(self, judge: Judge) -> None:
        """See `OnlineSide`."""
        self._inner.sweep(_Shifted(judge, self._personal, self._place))

    def grow(self, ids: int) -> None:
        """See `OnlineSide`."""
        self._inner.grow(ids)
        self._personal.follow()

    def keep(self, ids: NDArray[np.int64]) -> None:
        """See `OnlineSide`."""
        kept = torch.from_numpy(ids)
        rows = self._personal.rows_left(kept)
        self._inner.keep(ids)
        self._personal.follow_kept(kept)
        self._descent.keep(rows.numpy())

    def renumber(self, place: int, numbers: NDArray[np.int64]) -> None:
        """See `OnlineSide`."""
        self._inner.renumber(place, numbers)

    @property
    def nbytes(self) -> int:
        """What the descents hold."""
        return self._inner.nbytes + self._descent.nbytes

    def state_dict(self) -> dict[str, Any]:
        """See `OnlineSide`."""
        return {"inner": self._inner.state_dict(), "descent": self._descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `OnlineSide`."""
        self._inner.load_state_dict(state["inner"])
        self._descent.load_state_dict(state["descent"])


@dataclass(frozen=True, slots=True)
class _Shifted:
    """A judge of shared vectors, to which ids add what is their own."""

    judge: Judge
    table: PersonalEmbedding
    place: int

    def losses(
        self,
        side: str,
        batch: Batch,
        candidates: Tensor,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """See `Judge`."""
        offsets = self.table.offsets(batch.ids()[self.place])
        return self.judge.losses(side, batch, candidates + offsets, vectors)

    @property
    def kind(self) -> str:
        """See `Judge`."""
        return self.judge.kind

    def gradients(self, side: str, batch: Batch) -> Tensor:
        """See `Judge`."""
        return self.judge.gradients(side, batch)

    def tangent(
        self, side: str, batch: Batch, vectors: Mapping[str, Tensor] | None = None
    ) -> Tangent | None:
        """See `Judge`."""
        found = self.judge.tangent(side, batch, vectors)
        if found is None:
            return None
        offsets = self.table.offsets(batch.ids()[self.place])
        return found._replace(vector=found.vector - offsets)
