"""Evidence of several processes that train one model together."""

from __future__ import annotations

from torch import Tensor

from celrec.clustering.evidence import Evidence
from celrec.clustering.ranks import Ranks


class DistributedEvidence(Evidence):
    """The sums over all processes of what each knows from its own batches.

    With it the clusterers of all processes make the same moves, so that their tables
    stay alike, as data-parallel training needs: each sees but a share of the samples.
    All processes have to ask for the same at the same time, which clusterers with the
    same schedule and seed do:

        clusterer = Clusterer(table, optimizer, DistributedEvidence(evidence))
    """

    def __init__(self, own: Evidence, ranks: Ranks | None = None) -> None:
        """Of all processes of the default group if `ranks` is None."""
        self._own, self._ranks = own, ranks or Ranks.here()

    def observe(self, batch: object) -> None:
        """Take notice of a batch of this process."""
        self._own.observe(batch)

    def interactions(self) -> Tensor:
        """Of all processes."""
        return self._ranks.total(self._own.interactions())

    def gradients(self, members: Tensor) -> Tensor:
        """Of all processes."""
        return self._ranks.total(self._own.gradients(members))

    def losses(self) -> Tensor:
        """Of all processes."""
        return self._ranks.total(self._own.losses())

    def own_losses(self) -> Tensor:
        """Of all processes."""
        return self._ranks.total(self._own.own_losses())

    def partners(self, members: Tensor) -> Tensor:
        """The mean of what the processes know, each weighing as many interactions as it has."""
        means = self._own.partners(members)
        weight = self._own.interactions()[members].unsqueeze(1).to(means)
        return self._ranks.total(means * weight) / self._ranks.total(weight).clamp(min=1)
