"""Merging clusters whose rows are similar."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from celrec.embeddings.clustered import ClusteredEmbedding


def nearest_pair(
    rows: Tensor, metric: Tensor | None = None, *, skip_equal: bool = False
) -> tuple[int, int, float]:
    """The two rows at the least distance, the earlier one first, and their distance.

    The distance is Euclidean, or (b − b′)ᵀ·M·(b − b′) for a `metric` M. With `skip_equal`, rows
    that are equal do not count as a pair. The distance is infinite if there is no pair.

    >>> nearest_pair(torch.tensor([[0.0], [4.0], [1.0], [4.0]]))
    (1, 3, 0.0)
    >>> nearest_pair(torch.tensor([[0.0], [4.0], [1.0], [4.0]]), skip_equal=True)
    (0, 2, 1.0)
    """
    if metric is None:
        distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        products = rows @ metric @ rows.T
        squares = products.diagonal()
        distance = squares[:, None] + squares[None, :] - 2 * products
    if skip_equal:
        distance.masked_fill_(distance == 0, torch.inf)
    distance.masked_fill_(torch.ones_like(distance, dtype=torch.bool).tril(), torch.inf)
    first, second = divmod(int(distance.argmin()), len(rows))
    return first, second, float(distance[first, second])


@torch.no_grad()
def merge_while(table: ClusteredEmbedding, metric: Tensor, acceptable: Callable[[], bool]) -> int:
    """Merge the nearest pair of clusters as long as the result is `acceptable`.

    The merged row is the mean of the two, weighted by members. The first merge that is not
    acceptable is undone. Gives the number of merges.
    """
    merges = 0
    while table.num_clusters > 1:
        before = {name: value.clone() for name, value in table.state_dict().items()}
        first, second, _ = nearest_pair(table.weight[: table.num_clusters], metric)
        sizes = table.sizes()
        share = float(sizes[second] / (sizes[first] + sizes[second]))
        table.weight[first] = torch.lerp(table.weight[first], table.weight[second], share)
        table.merge(first, second)
        if not acceptable():
            table.load_state_dict(before)
            break
        merges += 1
    return merges
