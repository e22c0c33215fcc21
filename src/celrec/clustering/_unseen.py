"""Where ids that were never seen belong."""

from __future__ import annotations

import torch
from torch import Tensor

from celrec.embeddings.clustered import ClusteredEmbedding


@torch.no_grad()
def choose_unseen(table: ClusteredEmbedding) -> None:
    """Let unseen ids share the row that is nearest to the mean over all members."""
    rows = table.weight[: table.num_clusters]
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    share = table.sizes().to(rows.dtype) / table.num_embeddings
    table.unseen_cluster = int((rows - share @ rows).square().sum(1).argmin())


@torch.no_grad()
def join_unseen(table: ClusteredEmbedding, strangers: Tensor) -> None:
    """Put ids of which nothing is known (a mask) where unseen ones are.

    Else they would be wherever the splits of others have left them. A cluster that has no other
    members keeps them.
    """
    assignment = table.assignment[:-1].long()
    others = torch.bincount(assignment[~strangers], minlength=table.num_clusters)
    moving = strangers & (others[assignment] > 0)
    table.assign(torch.where(moving, table.unseen_cluster, assignment))
