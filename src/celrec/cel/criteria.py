"""Which cluster is split next, and where: criteria and thresholds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.runtime.communicator import WHOLE, Partition


class ClusterSums:
    """Sums over the members of each active cluster, computed on demand.

    The values of members are computed once: a split, after which rows are equal to those before,
    does not change them, but only the sums.
    """

    def __init__(self, table: ClusteredEmbedding, evidence: Evidence) -> None:
        self._table, self._evidence = table, evidence
        self._values: dict[str, Tensor] = {}

    def members(self) -> Tensor:
        """The number of members."""
        return self._table.sizes().double()

    def interactions(self) -> Tensor:
        """The number of interactions of the members."""
        return self._sum(self._evidence.interactions(), self._table.assignment[:-1])

    def loss(self) -> Tensor:
        """The loss of the members."""
        return self._total("loss", lambda _: self._evidence.own_losses())

    def gradient_norm(self) -> Tensor:
        """trace(GᵀG) = Σ ‖g_j‖²."""
        return self._total(
            "norm", lambda own: self._evidence.gradients(own).double().square().sum(1)
        )

    def gain(self) -> Tensor:
        """How far it would fall if each member had a row of its own."""
        return self._total("gain", lambda _: self._evidence.gains())

    def _total(self, name: str, of_own: Callable[[Tensor], Tensor]) -> Tensor:
        """Sums over all ranks of the values of this rank's ids."""
        everyone = torch.arange(self._table.num_embeddings, device=self._table.weight.device)
        partition = self._evidence.partition(everyone)
        if name not in self._values:
            self._values[name] = of_own(everyone[partition.mine])
        own = self._table.assignment[:-1][partition.mine]
        return partition.all_reduce(self._sum(self._values[name], own))

    def _sum(self, values: Tensor, cluster: Tensor) -> Tensor:
        return torch.bincount(cluster.long(), values.double(), minlength=self._table.num_clusters)


def most_interactions(sums: ClusterSums) -> Tensor:
    """The number of interactions: the paper's default."""
    return sums.interactions()


def most_members(sums: ClusterSums) -> Tensor:
    """The number of members, whatever their interactions."""
    return sums.members()


def total_loss(sums: ClusterSums) -> Tensor:
    """The sum of the losses of all interactions."""
    return sums.loss()


def mean_loss(sums: ClusterSums) -> Tensor:
    """The loss per member, not per interaction."""
    return sums.loss() / sums.members()


def gradient_norm(sums: ClusterSums) -> Tensor:
    """trace(GᵀG), the sum of squared gradients of the members."""
    return sums.gradient_norm()


def gain(sums: ClusterSums) -> Tensor:
    """Where rows of their own would lower the members' losses most."""
    return sums.gain()


CRITERIA: dict[str, Callable[[ClusterSums], Tensor]] = {
    "interactions": most_interactions,
    "members": most_members,
    "total-loss": total_loss,
    "mean-loss": mean_loss,
    "gradient-norm": gradient_norm,
    "gain": gain,
}


_BITS = 8  # per histogram


def nth_smallest(values: Tensor, n: int, partition: Partition) -> float:
    """The n-th smallest, from 0 on, of the finite doubles of all ranks, exactly.

    A radix search: floats are ordered as their bits are, so eight histograms of 256 bins, each
    of the next eight bits of the values that agree so far, find it. The traffic does not depend
    on the number of values.

    >>> nth_smallest(torch.tensor([0.5, -3.0, 2.0], dtype=torch.float64), 1, WHOLE)
    0.5
    """
    bits = (values + 0.0).view(torch.int64)  # adding 0.0 turns -0.0 into 0.0
    keys = torch.where(bits < 0, bits ^ 0x7FFF_FFFF_FFFF_FFFF, bits)
    found, wanted = 0, n
    for shift in range(64 - _BITS, -1, -_BITS):
        digits = keys >> shift
        lowest = found << _BITS if shift < 64 - _BITS else -(1 << (_BITS - 1))
        inside = digits[(digits >= lowest) & (digits < lowest + (1 << _BITS))] - lowest
        counts = partition.all_reduce(torch.bincount(inside, minlength=1 << _BITS))
        reached = counts.cumsum(0)
        digit = int(torch.searchsorted(reached, wanted, right=True))
        wanted -= int(reached[digit] - counts[digit])
        found = lowest + digit
    back = found ^ 0x7FFF_FFFF_FFFF_FFFF if found < 0 else found
    return float(torch.tensor(back, dtype=torch.int64).view(torch.float64))


def at_zero(scores: Tensor, interactions: Tensor, partition: Partition = WHOLE) -> Tensor:
    """δ = 0: members with a score of 0 or more leave."""
    del interactions, partition
    return scores >= 0


def at_median(scores: Tensor, interactions: Tensor, partition: Partition = WHOLE) -> Tensor:
    """δ = the median: the upper half leaves, ties are cut in the order of the members.

    Ranks exchange histograms of their scores.
    """
    del interactions
    staying = partition.total_size(scores) // 2
    median = nth_smallest(scores.double(), staying, partition)
    level = scores == median
    tied = partition.all_gather(level.sum().view(1))
    below = int(partition.all_reduce((scores < median).sum()))
    earlier = int(tied[: partition.communicator.rank].sum())  # ties of the ranks before
    return (scores > median) | (level & (level.cumsum(0) > staying - below - earlier))


def balanced(scores: Tensor, interactions: Tensor, partition: Partition = WHOLE) -> Tensor:
    """δ such that the interactions are divided as evenly as a threshold allows.

    Ranks exchange all scores.

    >>> balanced(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 1, 5]))
    tensor([False, False,  True])
    """
    scores, interactions = partition.all_gather(scores), partition.all_gather(interactions)
    order = scores.argsort(stable=True)
    below = interactions[order].cumsum(0)[:-1]
    staying = int((2 * below - interactions.sum()).abs().argmin()) + 1
    leaving = torch.zeros_like(scores, dtype=torch.bool).index_fill_(0, order[staying:], True)
    return leaving[partition.mine]


Threshold: TypeAlias = Callable[[Tensor, Tensor, Partition], Tensor]
"""From scores and interactions of this rank's members to a mask of those that leave."""

THRESHOLDS: dict[str, Threshold] = {
    "zero": at_zero,
    "median": at_median,
    "balanced": balanced,
}
