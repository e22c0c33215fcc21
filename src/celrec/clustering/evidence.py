"""What the moves of CEL need to know of the data and the model."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from celrec.clustering.share import Share


class Evidence(ABC):
    """Gradients and losses of the ids of one clustered table.

    The moves see the model through this alone. `AutogradEvidence` has it for any
    differentiable model; solvers with closed forms bring their own.
    """

    def observe(self, batch: object) -> None:  # noqa: B027  (most evidence is complete from the start)
        """Take notice of a batch that was trained on."""

    def share(self, members: Tensor) -> Share:
        """Which of these ids it can tell of: all, unless other processes tell of the others.

        Then all have to ask for the same at the same time, each for its own ids.
        """
        return Share.whole(len(members))

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
