"""Where ids that were never seen belong."""

from __future__ import annotations

import torch

from celrec.embeddings.clustered import ClusteredEmbedding


@torch.no_grad()
def choose_unseen(table: ClusteredEmbedding) -> None:
    """Let unseen ids share the row that is nearest to the mean over all members."""
    rows = table.weight[: table.num_clusters]
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    share = table.sizes().to(rows.dtype) / table.num_embeddings
    table.unseen_cluster = int((rows - share @ rows).square().sum(1).argmin())
