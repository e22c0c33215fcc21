"""Which cluster is split next: the one with the highest priority."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from celrec.clustering.evidence import Evidence
from celrec.embeddings.clustered import ClusteredEmbedding


class ClusterSums:
    """Sums over the members of each active cluster, made when they are asked for."""

    def __init__(self, table: ClusteredEmbedding, evidence: Evidence) -> None:
        self._table, self._evidence = table, evidence

    def members(self) -> Tensor:
        """How many there are."""
        return self._table.sizes().double()

    def interactions(self) -> Tensor:
        """How many they have."""
        return self._sum(self._evidence.interactions())

    def loss(self) -> Tensor:
        """The loss they make."""
        return self._sum(self._evidence.own_losses())

    def gradient_norm(self) -> Tensor:
        """trace(GᵀG) = Σ ‖g_j‖²."""
        ids = torch.arange(self._table.num_embeddings, device=self._table.weight.device)
        return self._sum(self._evidence.gradients(ids).double().square().sum(1))

    def _sum(self, values: Tensor) -> Tensor:
        cluster = self._table.assignment[:-1].long()
        return torch.bincount(cluster, values.double(), minlength=self._table.num_clusters)


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


CRITERIA: dict[str, Callable[[ClusterSums], Tensor]] = {
    "interactions": most_interactions,
    "members": most_members,
    "total-loss": total_loss,
    "mean-loss": mean_loss,
    "gradient-norm": gradient_norm,
}
