"""The interface of tables that are learned online."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.tangent_kernels import Tangents
from celrec.embeddings.embedding import Embedding
from celrec.errors import CelrecError
from celrec.recommender.batch import Batch


class LossProbe(Protocol):
    """Evaluates the loss of events under other vectors of one table."""

    @property
    def kind(self) -> str:
        """The name of the loss, empty for other losses."""

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
        """The outputs to first order in the vectors of `side`; None if outputs are not scalars.

        The vectors are given or looked up.
        """


class Tangent(NamedTuple):
    """The outputs to first order in the vectors of one table, event by event.

    For another vector: output + slope·(vector′ − vector), which is exact for dot products.
    """

    output: Tensor
    slope: Tensor
    vector: Tensor

    def arrays(self, target: Tensor, loss: str) -> Tangents:
        """The arguments of kernels for these targets and a loss among `KNOWN_LOSSES`."""
        parts = (self.output.numpy(), self.slope.numpy(), self.vector.numpy(), target.numpy())
        return Tangents(*parts, logistic=loss == "cross-entropy")


class Observation(NamedTuple):
    """Events that a table observes after they were learned."""

    batch: Batch
    ids: Tensor
    """Their ids in the table."""
    vectors: Mapping[str, Tensor]
    """The vectors of all tables before learning."""
    again: bool = False
    """Whether they were observed before; then they are not counted again."""
    tangent: Tangent | None = None
    """The outputs to first order, for tables with `by_tangent`, if outputs are scalars."""


class TableTrainer(ABC):
    """One table that is learned online: rows by gradients, clusters by observed events.

    Each batch is looked up, then learned, then observed.
    """

    by_tangent: bool = False
    """Whether `observe` uses the tangents of outputs."""

    def __init__(self, name: str, table: Embedding) -> None:
        self.name, self.table = name, table

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of events of each id, for tables that count them."""
        raise CelrecError(f"{type(self).__name__} counts no events")

    def begin(self) -> None:  # noqa: B027  (most have rows only)
        """Initialise what the table has besides rows."""

    @abstractmethod
    def lookup(self, ids: Tensor) -> Tensor:
        """The vectors of known ids, without a graph."""

    @abstractmethod
    def learn(self, gradients: Tensor) -> None:
        """Take a gradient step, given the gradients at the last lookup."""

    def without(self, batch: Batch, vectors: Mapping[str, Tensor], probe: LossProbe) -> Tensor:
        """The vectors without the evidence of this batch, which is learned again."""
        return vectors[self.name]

    def observe(self, events: Observation, probe: LossProbe) -> None:  # noqa: B027
        """Update what is known of ids, besides their rows; by default nothing."""

    def latest(self, ids: NDArray[np.int64]) -> Batch | None:
        """The stored events of some ids; None if the table stores none."""
        return None

    def sweep(self, probe: LossProbe) -> None:  # noqa: B027
        """Reassign all ids once more by the stored evidence."""

    @abstractmethod
    def grow(self, ids: int) -> None:
        """Raise the number of ids."""

    def keep(self, ids: NDArray[np.int64]) -> None:
        """Keep only these ids, given in ascending order, renumbered from 0."""
        raise CelrecError(
            f"{type(self).__name__} cannot drop ids, {len(ids):,} of {self.table.num_embeddings:,} "
            "were to be kept; take a table that can"
        )

    def make_room(self, ids: Tensor) -> None:
        """Grow if one of these ids is beyond the table."""
        most, room = int(ids.max()) if len(ids) else -1, self.table.num_embeddings
        if most >= room:  # by an eighth at least: to grow takes time for all ids
            self.grow(max(most + 1, room * 9 // 8))

    def renumber(self, place: int, numbers: NDArray[np.int64]) -> None:  # noqa: B027
        """Renumber the stored ids of another table, at `place` among all.

        `numbers` maps old to new numbers, −1 for removed ids.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in addition to the table."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state that is not in the table."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`, after the table has loaded its own."""
