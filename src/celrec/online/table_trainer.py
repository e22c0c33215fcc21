"""What a table has to do while it is learned online."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from celrec.embeddings.embedding import Embedding
from celrec.errors import CelrecError
from celrec.recommender.batch import Batch


class LossProbe(Protocol):
    """Tells how well vectors of one table would do."""

    @property
    def kind(self) -> str:
        """The name of the loss, if it has one."""

    def losses(
        self,
        side: str,
        batch: Batch,
        candidates: Tensor,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """(candidates, events): the losses with these in the place of the vectors of `side`.

        `candidates` is (candidates, 1 or events, dim). The other vectors are given or looked up.
        """

    def gradients(self, side: str, batch: Batch) -> Tensor:
        """(events, dim): the gradient of each loss at the vector of `side`."""

    def tangent(
        self, side: str, batch: Batch, vectors: Mapping[str, Tensor] | None = None
    ) -> Tangent | None:
        """The outputs to first order in the vectors of `side`; None if they are no numbers.

        All vectors are given or looked up.
        """


class Tangent(NamedTuple):
    """What outputs are to first order in the vectors of one table, event by event.

    output + slope·(vector′ − vector) for another vector: exact for dot products.
    """

    output: Tensor
    slope: Tensor
    vector: Tensor


class TableTrainer(ABC):
    """One table that is learned event by event: rows by gradients, all else by what it observes.

    A batch is looked up, then learned, then observed.
    """

    by_tangent: bool = False
    """Whether events are judged by tangents."""

    def __init__(self, name: str, table: Embedding) -> None:
        self.name, self.table = name, table

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many events each id has had, where that is counted."""
        raise CelrecError(f"{type(self).__name__} counts no events")

    def begin(self) -> None:  # noqa: B027  (most have nothing but rows)
        """Give what the table holds besides rows its first values."""

    @abstractmethod
    def lookup(self, ids: Tensor) -> Tensor:
        """The vectors of ids that are known, without a graph."""

    @abstractmethod
    def learn(self, gradients: Tensor) -> None:
        """Take a step of descent, given the gradients at what was looked up last."""

    def without(self, batch: Batch, vectors: Mapping[str, Tensor], probe: LossProbe) -> Tensor:
        """The vectors as they would be had this batch not been observed, for it comes again."""
        return vectors[self.name]

    def observe(  # noqa: B027  (most have nothing to take notice of)
        self,
        batch: Batch,
        ids: Tensor,
        vectors: Mapping[str, Tensor],
        probe: LossProbe,
        *,
        again: bool,
        tangent: Tangent | None = None,
    ) -> None:
        """Take notice of events that were learned; `vectors` are those from before.

        With `again` they were observed before, and nothing is to be counted twice. `tangent` is
        given to those who go by it, where outputs are numbers.
        """

    def latest(self, ids: NDArray[np.int64]) -> Batch | None:
        """The events that are kept of some ids, if any are kept at all."""
        return None

    def sweep(self, probe: LossProbe) -> None:  # noqa: B027
        """Judge all ids once more by what is known of them."""

    @abstractmethod
    def grow(self, ids: int) -> None:
        """Make room for more ids."""

    def keep(self, ids: NDArray[np.int64]) -> None:
        """Let only these ids remain, which ascend, numbered anew from 0."""
        raise CelrecError(
            f"{type(self).__name__} cannot drop ids, {len(ids):,} of {self.table.num_embeddings:,} "
            "were to be kept; take a table that can"
        )

    def make_room(self, ids: Tensor) -> None:
        """Grow, if any of these ids asks for it."""
        most, room = int(ids.max()) if len(ids) else -1, self.table.num_embeddings
        if most >= room:  # by an eighth at least: to grow takes time for all ids
            self.grow(max(most + 1, room * 9 // 8))

    def renumber(self, place: int, numbers: NDArray[np.int64]) -> None:  # noqa: B027
        """Take up that ids of another table, at `place` among all, have other numbers, or none.

        `numbers` tells those by what they were, −1 for ids that are gone.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held beside the table."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the table does not hold."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, after the table has taken up its own."""
