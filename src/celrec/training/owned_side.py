"""A table whose ids are spread over processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.clustering.ranks import Ranks
from celrec.errors import CelrecError
from celrec.training.batch import Batch
from celrec.training.online_side import Judge, OnlineSide, Tangent
from celrec.training.routes import Routes


class OwnedSide(OnlineSide):
    """Each id belongs to one of several processes: number n to rank n mod size, as n div size.

    There its evidence is kept. Others ask the owner for its vector, and tell it of their events:
    the gradient at the vector, and the tangent. So what is kept of ids is divided among the
    processes, and what is sent depends on the events alone. Ids below 0 are looked up at home.
    """

    meets_others = True

    def __init__(self, inner: OnlineSide, ranks: Ranks) -> None:
        """`inner` has the ids of this process, by their numbers here."""
        super().__init__(inner.name, inner.table)
        self.inner, self._ranks = inner, ranks
        self.by_tangent = inner.by_tangent
        self._routes: Routes | None = None

    def owned(self, ids: int) -> NDArray[np.int64]:
        """Those of the first ids that belong to this process."""
        return np.arange(self._ranks.rank, ids, self._ranks.size)

    @property
    def capacity(self) -> int:
        """See `OnlineSide`: owners make room when they are asked."""
        return int(np.iinfo(np.int64).max)

    @property
    def counts(self) -> NDArray[np.int64]:
        """See `OnlineSide`; of the ids here."""
        return self.inner.counts

    def begin(self) -> None:
        """See `OnlineSide`."""
        self.inner.begin()

    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        self._routes, numbers = self._routed(ids)
        self._make_room(numbers)
        return self._routes.back(self.inner.lookup(numbers))

    def learn(self, gradients: Tensor) -> None:
        """See `OnlineSide`."""
        assert self._routes is not None  # noqa: S101  (what is learned was looked up)
        self.inner.learn(self._routes.there(gradients))

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
        """Tell the owners of the events, by tangents."""
        del vectors
        if not self.by_tangent:
            return
        if tangent is None or batch.moment is None:
            raise CelrecError(
                f"{self._ranks.size} processes cannot learn a model with several outputs together; "
                "take one process"
            )
        routes, numbers = self._routed(ids)
        told = [tangent.output[:, None], tangent.slope, tangent.vector, batch.target[:, None]]
        heard, moments = routes.there(torch.cat(told, 1)), routes.there(batch.moment)
        # Evidence has limits, so that it matters what comes first.
        moments, order = torch.sort(moments)
        heard, numbers = heard[order], numbers[order]
        dim = tangent.slope.shape[1]
        output, slope, vector, target = (
            part.contiguous() for part in torch.split(heard, [1, dim, dim, 1], 1)
        )
        there = Batch(numbers, numbers, target[:, 0], moment=moments)
        if len(numbers):
            of_others = Tangent(output[:, 0], slope, vector)
            self.inner.observe(there, numbers, {}, judge, again=again, tangent=of_others)

    def grow(self, ids: int) -> None:
        """See `OnlineSide`: owners make room when they are asked."""

    @property
    def nbytes(self) -> int:
        """See `OnlineSide`; of this process."""
        return self.inner.nbytes

    def state_dict(self) -> dict[str, Any]:
        """See `OnlineSide`; of this process."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `OnlineSide`."""
        self.inner.load_state_dict(state)

    def _routed(self, ids: Tensor) -> tuple[Routes, Tensor]:
        """The way to the owners, and the numbers of what this process is asked for."""
        size = self._ranks.size
        known = ids >= 0
        routes = Routes(torch.where(known, ids % size, self._ranks.rank), self._ranks)
        return routes, routes.there(torch.where(known, ids // size, ids))

    def _make_room(self, numbers: Tensor) -> None:
        most, known = int(numbers.max()) if len(numbers) else -1, self.inner.capacity
        if most >= known:  # by an eighth at least: to grow takes time for all ids
            self.inner.grow(max(most + 1, known * 9 // 8))
