"""Reassignment of members to clusters, and merging of clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError
from celrec.runtime.communicator import WHOLE, Partition


def best_columns(losses: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Argmin of each row of losses, the first of equals, and how much less it is than column `own`.

    The columns are clusters, or some candidates for each member. Put its own cluster first among
    candidates, so that ties stay.

    >>> best_columns(torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 4.0]]), torch.tensor([0, 0]))
    (tensor([1, 0]), tensor([2., 0.]))
    """
    best, column = losses.min(1)
    return column, losses.gather(1, own[:, None]).squeeze(1) - best


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Moves each member to the cluster whose row has the least loss: argmin_k.

    A member moves only if its loss falls by more than `margin` per interaction; ties stay. It
    stays with probability `keep`, and with fewer than `evidence` interactions. No cluster becomes
    empty: the former member that gains least goes back. So the total loss never rises.

    >>> losses = torch.tensor([[1.0, 0.5], [1.0, 2.0], [3.0, 3.0]])
    >>> rule = Reassignment(keep=0.0)
    >>> rule(losses, torch.tensor([0, 0, 1]), torch.ones(3), torch.Generator())
    tensor([1, 0, 1])
    """

    keep: float = 0.3
    evidence: int = 0
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= 1:
            raise CelrecError(f"keep must be a probability, not {self.keep}")
        if self.evidence < 0 or self.margin < 0:
            raise CelrecError(
                f"evidence and margin must not be negative, not {self.evidence} and {self.margin}"
            )

    def __call__(
        self,
        losses: Tensor,
        current: Tensor,
        interactions: Tensor,
        generator: torch.Generator | None = None,
        partition: Partition = WHOLE,
    ) -> Tensor:
        """The new cluster of every member, given losses (members × clusters).

        Of several ranks, each knows the losses of its `partition` of the members, and they exchange
        the moves.
        """
        own = current[partition.mine]
        choice, gain = best_columns(losses, own)
        return self.move(choice, gain, current, interactions, generator, partition)

    def move(
        self,
        choice: Tensor,
        gain: Tensor,
        current: Tensor,
        interactions: Tensor,
        generator: torch.Generator | None = None,
        partition: Partition = WHOLE,
    ) -> Tensor:
        """The new cluster of every member, given the best one for each and what it would gain.

        `choice` and `gain` are those of this rank's `partition` of the members.
        """
        moving = gain > self.margin * interactions[partition.mine]
        moving &= interactions[partition.mine] >= self.evidence
        if self.keep:
            drawn = torch.rand(len(current), generator=generator).to(current.device)
            moving &= drawn[partition.mine] >= self.keep
        ids = torch.nonzero(moving).squeeze(1)
        moves = torch.stack([ids + partition.start, choice[ids]], 1)
        who, where = partition.all_gather(moves.int()).long().unbind(1)
        proposed = current.index_copy(0, who, where)
        return none_empty(proposed, current, gain, partition)


def none_empty(
    proposed: Tensor, current: Tensor, gain: Tensor, partition: Partition = WHOLE
) -> Tensor:
    """`proposed`, with the former member that gains least back in each cluster it would empty.

    The gains are those of this rank's `partition` of the members.
    """
    before = torch.bincount(current)
    while True:
        sizes = torch.bincount(proposed, minlength=len(before))[: len(before)]
        # Only clusters that had members can be refilled; a member sent back may empty another.
        emptied = (sizes == 0) & (before > 0)
        if not bool(emptied.any()):
            return proposed
        rows = torch.nonzero(emptied[current[partition.mine]]).squeeze(1)
        rows = rows[_least(gain[rows], current[partition.mine][rows])]
        gains, rows = partition.all_gather(gain[rows]), partition.all_gather(rows + partition.start)
        rows = rows[_least(gains, current[rows])]
        proposed = proposed.index_copy(0, rows, current[rows])


def _least(gain: Tensor, cluster: Tensor) -> Tensor:
    """The place of the least gain in each cluster, the first of equals."""
    order = gain.argsort(stable=True)
    order = order[cluster[order].argsort(stable=True)]
    of = cluster[order]
    first = torch.ones_like(of, dtype=torch.bool)
    first[1:] = of[1:] != of[:-1]
    return order[first]


@torch.no_grad()
def choose_unseen(table: ClusteredEmbedding) -> None:
    """Give unseen ids the cluster whose row is nearest to the mean vector of all ids."""
    rows = table.weight[: table.num_clusters]
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    share = table.sizes().to(rows.dtype) / table.num_embeddings
    table.unseen_cluster = int((rows - share @ rows).square().sum(1).argmin())


@torch.no_grad()
def join_unseen(table: ClusteredEmbedding, strangers: Tensor) -> None:
    """Move ids without interactions (a mask) to the cluster of unseen ids.

    A cluster without other members keeps them.
    """
    assignment = table.assignment[:-1].long()
    others = torch.bincount(assignment[~strangers], minlength=table.num_clusters)
    moving = strangers & (others[assignment] > 0)
    table.assign(torch.where(moving, table.unseen_cluster, assignment))


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
    """Merge the nearest pair of clusters while the result is `acceptable`; the number of merges.

    The merged row is the mean, weighted by members. An unacceptable merge is undone.
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
