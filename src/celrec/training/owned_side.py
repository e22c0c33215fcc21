"""A table whose ids are spread over processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.clustering.ranks import Ranks
from celrec.training.batch import Batch
from celrec.training.online_side import OnlineSide, Tangent
from celrec.training.routes import Routes


class OwnedSide(OnlineSide):
    """Each id belongs to one of several processes: number n to rank n mod size, as n div size.

    There all that is kept of it is. Others ask the owner for its vector, and tell it of the
    gradients there. So what is kept of ids is divided among the processes, and what is sent
    depends on the events alone. Ids below 0 are looked up at home.
    """

    meets_others = True

    def __init__(self, inner: OnlineSide, ranks: Ranks) -> None:
        """`inner` has the ids of this process, by their numbers here."""
        super().__init__(inner.name, inner.table)
        self.inner, self._ranks = inner, ranks
        self.by_tangent = inner.by_tangent
        self._routes: Routes | None = None
        self._gradients = torch.empty(0)

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

    def asked(self, ids: Tensor) -> tuple[Routes, Tensor]:
        """The way to the owners, and the numbers of what this process is asked for."""
        routes, numbers = Routes.to_owners(ids, self._ranks)
        self.inner.make_room(numbers)
        return routes, numbers

    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        self._routes, numbers = self.asked(ids)
        return self._routes.back(self.inner.lookup(numbers))

    def tell_owners(self, batch: Batch, gradients: Tensor, tangent: Tangent | None) -> None:
        """See `OnlineSide`."""
        del batch, tangent
        assert self._routes is not None  # noqa: S101  (what is learned was looked up)
        self._gradients = self._routes.there(gradients)

    def pull(self, gradients: Tensor) -> Tensor | None:
        """See `OnlineSide`: from all that was told of the ids here."""
        del gradients
        return self.inner.pull(self._gradients)

    def descend(self, pulled: Tensor | None) -> None:
        """See `OnlineSide`."""
        self.inner.descend(pulled)

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
