"""What the steps of CEL need to know about the data and the model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from celrec.cel.reassignment import best_columns
from celrec.errors import CelrecError
from celrec.runtime.communicator import WHOLE, Communicator, Partition, default_communicator


class Evidence(ABC):
    """Gradients and losses of the ids of one clustered table.

    Splits and reassignment depend on the model through this interface only.
    `AutogradEvidence` implements it for any differentiable model, solvers with closed
    forms and streams have implementations of their own.
    """

    def observe(self, batch: object) -> None:  # noqa: B027  (most evidence is complete from the start)
        """Take notice of a batch that was trained on."""

    def partition(self, members: Tensor) -> Partition:
        """Which of these ids this rank knows: all, unless other ranks know the others.

        If so, gradients and losses are those of this rank's ids, and every rank has to make the
        same calls.
        """
        return WHOLE

    @abstractmethod
    def interactions(self) -> Tensor:
        """The number of interactions of each id, on all ranks."""

    @abstractmethod
    def gradients(self, members: Tensor) -> Tensor:
        """g_j = −∂L/∂B(j) at the shared row, for each of these ids."""

    @abstractmethod
    def losses(self) -> Tensor:
        """The loss of every id under the row of every active cluster, ids × clusters."""

    def best_clusters(self, current: Tensor) -> tuple[Tensor, Tensor]:
        """The cluster of least loss for each own id, and how much less it is than in `current`."""
        return best_columns(self.losses(), current)

    @abstractmethod
    def own_losses(self) -> Tensor:
        """The loss of every id under the row of its own cluster."""

    def gains(self) -> Tensor:
        """How far the loss of every own id would fall if it had a row of its own."""
        raise CelrecError(
            f"criterion: 'gain' needs the curvature of each id's loss, and {type(self).__name__} "
            "does not know it; take another criterion"
        )

    def partners(self, members: Tensor) -> Tensor:
        """The mean vector of the users (or items) that each of these ids interacted with."""
        raise CelrecError(
            "method 'user-2-means' needs to know the partners of an id, which "
            f"{type(self).__name__} does not know; choose another split method"
        )


class DistributedEvidence(Evidence):
    """The sums over all ranks of the evidence that each has from its own batches.

    For data-parallel training, where each rank sees a part of the samples: the clusterers of
    all ranks make the same moves, so that their tables stay equal. Every rank has to make the
    same calls, as clusterers with the same schedule and seed do:

        clusterer = Clusterer(table, optimizer, DistributedEvidence(evidence))
    """

    def __init__(self, own: Evidence, communicator: Communicator | None = None) -> None:
        """`communicator` defaults to the ranks of the default process group."""
        self._own, self._communicator = own, communicator or default_communicator()

    def observe(self, batch: object) -> None:
        self._own.observe(batch)

    def interactions(self) -> Tensor:
        return self._communicator.all_reduce(self._own.interactions())

    def gradients(self, members: Tensor) -> Tensor:
        return self._communicator.all_reduce(self._own.gradients(members))

    def losses(self) -> Tensor:
        return self._communicator.all_reduce(self._own.losses())

    def own_losses(self) -> Tensor:
        return self._communicator.all_reduce(self._own.own_losses())

    def partners(self, members: Tensor) -> Tensor:
        """The mean over ranks, weighted by their interactions."""
        means = self._own.partners(members)
        weight = self._own.interactions()[members].unsqueeze(1).to(means)
        fraction = weight / self._communicator.all_reduce(weight).clamp(min=1)
        return self._communicator.all_reduce(means * fraction)
