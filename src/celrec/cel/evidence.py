"""What the steps of CEL need to know of the data and the model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from celrec.runtime.communicator import Communicator, Partition


class Evidence(ABC):
    """Gradients and losses of the ids of one clustered table.

    The moves see the model through this alone. `AutogradEvidence` has it for any
    differentiable model; solvers with closed forms bring their own.
    """

    def observe(self, batch: object) -> None:  # noqa: B027  (most evidence is complete from the start)
        """Take notice of a batch that was trained on."""

    def share(self, members: Tensor) -> Partition:
        """Which of these ids it can tell of: all, unless other processes tell of the others.

        Then all have to ask for the same at the same time, each for its own ids.
        """
        return Partition.whole(len(members))

    @abstractmethod
    def interactions(self) -> Tensor:
        """How many interactions each id has, whoever tells of it."""

    @abstractmethod
    def gradients(self, members: Tensor) -> Tensor:
        """g_j = −∂L/∂B(j) at the shared row, for each of these ids."""

    @abstractmethod
    def losses(self) -> Tensor:
        """The loss of every own id under the row of every active cluster, ids × clusters."""

    @abstractmethod
    def own_losses(self) -> Tensor:
        """The loss of every own id under the row that it has."""

    @abstractmethod
    def partners(self, members: Tensor) -> Tensor:
        """The mean vector of those that each of these ids interacted with."""


class DistributedEvidence(Evidence):
    """The sums over all processes of what each knows from its own batches.

    With it the clusterers of all processes make the same moves, so that their tables
    stay alike, as data-parallel training needs: each sees but a share of the samples.
    All processes have to ask for the same at the same time, which clusterers with the
    same schedule and seed do:

        clusterer = Clusterer(table, optimizer, DistributedEvidence(evidence))
    """

    def __init__(self, own: Evidence, communicator: Communicator | None = None) -> None:
        """Of all processes of the default group if `communicator` is None."""
        self._own, self._communicator = own, communicator or Communicator.here()

    def observe(self, batch: object) -> None:
        """Take notice of a batch of this process."""
        self._own.observe(batch)

    def interactions(self) -> Tensor:
        """Of all processes."""
        return self._communicator.total(self._own.interactions())

    def gradients(self, members: Tensor) -> Tensor:
        """Of all processes."""
        return self._communicator.total(self._own.gradients(members))

    def losses(self) -> Tensor:
        """Of all processes."""
        return self._communicator.total(self._own.losses())

    def own_losses(self) -> Tensor:
        """Of all processes."""
        return self._communicator.total(self._own.own_losses())

    def partners(self, members: Tensor) -> Tensor:
        """The mean of what the processes know, each weighing as many interactions as it has."""
        means = self._own.partners(members)
        weight = self._own.interactions()[members].unsqueeze(1).to(means)
        return self._communicator.total(means * weight) / self._communicator.total(weight).clamp(
            min=1
        )
