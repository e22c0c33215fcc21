"""Merging clusters that came out alike."""

from __future__ import annotations

import torch

from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.training.factorisation import Factorisation


@torch.no_grad()
def merge_alike(model: Factorisation, log: Interactions, side: str, tolerance: float) -> int:
    """Merge clusters as long as the error on `log` stays within `tolerance` of what it was.

    The pair whose rows predict most alike is merged first: the distance between
    rows b and b′ is (b − b′)ᵀ·E[a·aᵀ]·(b − b′) over the rows a of the other side,
    and the merged row is the mean, weighted by members. Gives the number of merges.
    """
    tables = model.user_rows, model.item_rows
    other, table = tables if side == "items" else tables[::-1]
    if not isinstance(table, ClusteredEmbedding) or not len(log):
        return 0
    target = torch.tensor(log.target)
    limit = float((model.predict(log) - target).square().mean()) + tolerance
    partners = other(torch.arange(other.num_embeddings))
    metric = partners.T @ partners / len(partners)
    merges = 0
    while table.num_clusters > 1:
        before = {name: value.clone() for name, value in table.state_dict().items()}
        first, second = _nearest(table.weight[: table.num_clusters], metric)
        sizes = table.sizes()
        share = float(sizes[second] / (sizes[first] + sizes[second]))
        table.weight[first] = torch.lerp(table.weight[first], table.weight[second], share)
        table.merge(first, second)
        if float((model.predict(log) - target).square().mean()) > limit:
            table.load_state_dict(before)
            break
        merges += 1
    return merges


def _nearest(rows: torch.Tensor, metric: torch.Tensor) -> tuple[int, int]:
    """The two rows at the least distance, the earlier one first."""
    products = rows @ metric @ rows.T
    squares = products.diagonal()
    distance = squares[:, None] + squares[None, :] - 2 * products
    distance.masked_fill_(torch.ones_like(distance, dtype=torch.bool).tril(), torch.inf)
    first, second = divmod(int(distance.argmin()), len(rows))
    return first, second
