"""Split criteria: the cluster with the highest priority is split next."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.runtime.partition import Partition


class ClusterSums:
    """Sums over the members of each active cluster, computed on demand."""

    def __init__(self, table: ClusteredEmbedding, evidence: Evidence) -> None:
        self._table, self._evidence = table, evidence

    def members(self) -> Tensor:
        """The number of members."""
        return self._table.sizes().double()

    def interactions(self) -> Tensor:
        """The number of interactions of the members."""
        return self._sum(self._evidence.interactions(), self._table.assignment[:-1])

    def loss(self) -> Tensor:
        """The loss of the members."""
        return self._total(self._evidence.own_losses(), self._partition())

    def gradient_norm(self) -> Tensor:
        """trace(GᵀG) = Σ ‖g_j‖²."""
        partition = self._partition()
        gradients = self._evidence.gradients(self._everyone()[partition.mine])
        return self._total(gradients.double().square().sum(1), partition)

    def gain(self) -> Tensor:
        """How far it would fall if each member had a row of its own."""
        return self._total(self._evidence.gains(), self._partition())

    def _everyone(self) -> Tensor:
        return torch.arange(self._table.num_embeddings, device=self._table.weight.device)

    def _partition(self) -> Partition:
        return self._evidence.partition(self._everyone())

    def _total(self, values: Tensor, partition: Partition) -> Tensor:
        """Sums of the values of this rank's ids, added over ranks: a number for each cluster."""
        return partition.all_reduce(self._sum(values, self._table.assignment[:-1][partition.mine]))

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
