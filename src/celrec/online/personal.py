"""Private rows for ids with enough events, learned online."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.config.online import RowDescentConfig
from celrec.embeddings.personal import PersonalEmbedding
from celrec.online.row_descent import RowDescent
from celrec.online.table_trainer import LossProbe, Observation, TableTrainer, Tangent
from celrec.recommender.batch import Batch
from celrec.runtime.memory_budget import MemoryBudget


class PersonalTableTrainer(TableTrainer):
    """Shared rows as before, plus a private offset for ids with more than `above` events.

    The penalty of `how` draws offsets to 0, and so vectors to their shared vectors:
    L + l2/2·‖own vector − shared vector‖² for each lookup.
    """

    def __init__(
        self,
        inner: TableTrainer,
        table: PersonalEmbedding,
        how: RowDescentConfig,
        above: int,
        place: int,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`place` is the position of the table in the model."""
        super().__init__(inner.name, table)
        self._inner, self._personal, self._above, self._place = inner, table, above, place
        self.by_tangent = inner.by_tangent
        self._descent = RowDescent(table.offset, how, budget)
        self._looked_up = torch.empty(0, dtype=torch.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._inner.counts

    def begin(self) -> None:
        self._inner.begin()

    @torch.no_grad()
    def lookup(self, ids: Tensor) -> Tensor:
        self._looked_up = self._personal.own_of(ids)
        return self._inner.lookup(ids) + self._personal.offsets(ids)

    def learn(self, gradients: Tensor) -> None:
        has = self._looked_up >= 0
        if bool(has.any()):
            self._descent.step(self._looked_up[has], gradients[has])
        self._inner.learn(gradients)

    def without(self, batch: Batch, vectors: Mapping[str, Tensor], probe: LossProbe) -> Tensor:
        offsets = self._personal.offsets(batch.ids()[self._place])
        shared = self._inner.without(batch, vectors, _Shifted(probe, self._personal, self._place))
        return shared + offsets

    def observe(self, events: Observation, probe: LossProbe) -> None:
        """Shared rows are evaluated together with the offset of each id."""
        ids, tangent = events.ids, events.tangent
        shifted = _Shifted(probe, self._personal, self._place)
        if tangent is not None:
            tangent = tangent._replace(vector=tangent.vector - self._personal.offsets(ids))
        self._inner.observe(events._replace(tangent=tangent), shifted)
        warm = ids[torch.from_numpy(self.counts[ids.numpy()] > self._above)]
        warm = warm[self._personal.own_of(warm) < 0]
        if len(warm):
            self._personal.give(warm)

    def latest(self, ids: NDArray[np.int64]) -> Batch | None:
        return self._inner.latest(ids)

    def sweep(self, probe: LossProbe) -> None:
        self._inner.sweep(_Shifted(probe, self._personal, self._place))

    def grow(self, ids: int) -> None:
        self._inner.grow(ids)
        self._personal.sync_growth()

    def keep(self, ids: NDArray[np.int64]) -> None:
        kept = torch.from_numpy(ids)
        rows = self._personal.kept_rows(kept)
        self._inner.keep(ids)
        self._personal.sync_kept(kept)
        self._descent.keep(rows.numpy())

    def renumber(self, place: int, numbers: NDArray[np.int64]) -> None:
        self._inner.renumber(place, numbers)

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + self._descent.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self._inner.state_dict(), "descent": self._descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        self._descent.load_state_dict(state["descent"])


@dataclass(frozen=True, slots=True)
class _Shifted(LossProbe):
    """A probe of shared vectors, to which the offsets of ids are added."""

    probe: LossProbe
    table: PersonalEmbedding
    place: int

    def losses(
        self,
        side: str,
        batch: Batch,
        candidates: Tensor,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        offsets = self.table.offsets(batch.ids()[self.place])
        return self.probe.losses(side, batch, candidates + offsets, vectors)

    @property
    def kind(self) -> str:
        return self.probe.kind

    def gradients(self, side: str, batch: Batch) -> Tensor:
        return self.probe.gradients(side, batch)

    def tangent(
        self, side: str, batch: Batch, vectors: Mapping[str, Tensor] | None = None
    ) -> Tangent | None:
        found = self.probe.tangent(side, batch, vectors)
        if found is None:
            return None
        offsets = self.table.offsets(batch.ids()[self.place])
        return found._replace(vector=found.vector - offsets)
