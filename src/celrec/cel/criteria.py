"""Which cluster is split next: the one with the highest priority."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.runtime.partition import Partition


class ClusterSums:
    """Sums over the members of each active cluster, made when they are asked for."""

    def __init__(self, table: ClusteredEmbedding, evidence: Evidence) -> None:
        self._table, self._evidence = table, evidence

    def members(self) -> Tensor:
        """How many there are."""
        return self._table.sizes().double()

    def interactions(self) -> Tensor:
        """How many they have."""
        return self._sum(self._evidence.interactions(), self._table.assignment[:-1])

    def loss(self) -> Tensor:
        """The loss they make."""
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
        """From the values of this process's ids: what is sent is a number for each cluster."""
        return partition.all_reduce(self._sum(values, self._table.assignment[:-1][partition.mine]))

    def _sum(self, values: Tensor, cluster: Tensor) -> Tensor:
        return torch.bincount(cluster.long(), values.double(), minlength=self._table.num_clusters)


def most_interactions(sums: ClusterSums) -> Tensor:
    """The paper's default."""
    return sums.interactions()


def most_members(sums: ClusterSums) -> Tensor:
    """However little is known of them."""
    return sums.members()


def total_loss(sums: ClusterSums) -> Tensor:
    """Where most of the error is made."""
    return sums.loss()


def mean_loss(sums: ClusterSums) -> Tensor:
    """Where a member has most error; members are counted, not interactions."""
    return sums.loss() / sums.members()


def gradient_norm(sums: ClusterSums) -> Tensor:
    """Where members pull hardest."""
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
