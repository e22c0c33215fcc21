"""The steps of CEL as one more object in a training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from celrec.cel.autograd_evidence import AutogradEvidence, Objective
from celrec.cel.bag_evidence import BagEvidence
from celrec.cel.criteria import CRITERIA, ClusterSums
from celrec.cel.evidence import Evidence
from celrec.cel.reassignment import Reassignment, choose_unseen
from celrec.cel.split import Splitter, choose_cluster
from celrec.cel.split_scores import Members
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import LooksUpBags
from celrec.embeddings.row_state import copy_row_state
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class Move:
    """A split or a reassignment that took place."""

    step: int
    kind: str
    """`split` or `reassign`."""
    moved: int
    """How many ids changed their cluster."""
    clusters: int
    """How many clusters there are now."""
    cluster: int | None = None
    """The cluster that was split."""


class Clusterer:
    """Splits and re-forms the clusters of one table while a model is trained.

    Every `split_every` steps the cluster that ranks highest by `criterion` is
    split as `splitter` says, until `max_clusters`; with `growth` not one but that
    share of the clusters, one after the other. Every `reassign_every` steps all
    members are reassigned as `reassignment` says. 0 means never. What the moves need
    to know comes from the objective, the loss per sample of a batch, or from an
    `Evidence`.

    >>> table = ClusteredEmbedding(8, 2, max_clusters=4)
    >>> ids, target = torch.arange(8), torch.arange(8) % 2
    >>> objective = lambda rows: (table(ids[rows]).sum(-1) - target[rows]) ** 2
    >>> optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    >>> clusterer = Clusterer(table, optimizer, objective, split_every=5, reassign_every=10)
    >>> for step in range(20):
    ...     objective(ids).mean().backward()
    ...     optimizer.step(); optimizer.zero_grad()
    ...     moves = clusterer.step(ids)
    >>> table.num_clusters
    4
    >>> bool((objective(ids) < 0.1).all())
    True
    """

    def __init__(
        self,
        table: ClusteredEmbedding | LooksUpBags,
        optimizer: Optimizer | None,
        objective: Objective | Evidence,
        *,
        split_every: int = 10,
        growth: float = 0.0,
        reassign_every: int = 40,
        max_clusters: int | None = None,
        criterion: str = "interactions",
        splitter: Splitter | None = None,
        reassignment: Reassignment | None = None,
        seed: int = 0,
    ) -> None:
        if split_every < 0 or reassign_every < 0:
            raise CelrecError(
                "split_every and reassign_every must not be negative, "
                f"not {split_every} and {reassign_every}"
            )
        if not 0 <= growth <= 1:
            raise CelrecError(f"growth must be a share of the clusters, not {growth}")
        if criterion not in CRITERIA:
            raise CelrecError(f"criterion must be one of {', '.join(CRITERIA)}, not {criterion!r}")
        if not isinstance(objective, Evidence):
            objective = _evidence(table, objective)
        if not isinstance(table, ClusteredEmbedding):
            table = table.table
        if max_clusters is not None and not 1 <= max_clusters <= table.max_clusters:
            raise CelrecError(
                f"max_clusters must lie in 1 … {table.max_clusters}, not {max_clusters}"
            )
        self.table, self.optimizer = table, optimizer
        self.evidence: Evidence = objective
        self.split_every, self.growth, self.reassign_every = split_every, growth, reassign_every
        self.max_clusters = max_clusters or table.max_clusters
        self.criterion = criterion
        self.splitter = splitter or Splitter()
        self.reassignment = reassignment or Reassignment()
        self.steps = 0
        self._generator = torch.Generator().manual_seed(seed)

    def step(self, batch: Any = None) -> list[Move]:
        """To be called after each step of the optimiser; the moves that were made."""
        self.evidence.observe(batch)
        self.steps += 1
        moves = []
        if self.reassign_every and self.steps % self.reassign_every == 0:
            moves.append(self.reassign())
        if self.split_every and self.steps % self.split_every == 0:
            for _ in range(max(1, int(self.growth * self.table.num_clusters))):
                moves += self.split()
        return moves

    @torch.no_grad()
    def split(self) -> list[Move]:
        """Split one cluster now; no move if there are enough, or none can be split."""
        table = self.table
        if table.num_clusters >= self.max_clusters:
            return []
        priority = CRITERIA[self.criterion](ClusterSums(table, self.evidence))
        cluster = choose_cluster(priority, table.sizes())
        if cluster is None or not bool(priority[cluster].isfinite()):
            return []
        ids = table.members(cluster)
        partition = self.evidence.partition(ids)
        own = ids[partition.mine]
        members = Members(
            gradients=self.evidence.gradients(own),
            interactions=self.evidence.interactions()[own],
            partners=self.evidence.partners(own) if self.splitter.needs_partners else None,
            partition=partition,
        )
        leaving = ids[partition.all_gather(self.splitter.leaving(members, self._generator))]
        new = table.split(cluster, leaving)
        copy_row_state(self.optimizer, table.weight, cluster, new)
        choose_unseen(table)
        return [Move(self.steps, "split", len(leaving), table.num_clusters, cluster)]

    @torch.no_grad()
    def reassign(self) -> Move:
        """Reassign all members now."""
        table = self.table
        before = table.assignment[:-1].long()
        partition = self.evidence.partition(torch.arange(len(before), device=before.device))
        losses, interactions = self.evidence.losses(), self.evidence.interactions()
        after = self.reassignment(losses, before, interactions, self._generator, partition)
        table.assign(after)
        choose_unseen(table)
        moved = int((after != before).sum())
        return Move(self.steps, "reassign", moved, table.num_clusters)

    def state_dict(self) -> dict[str, Any]:
        """The step count and the state of the random numbers.

        The table and the optimiser keep their own. Batches that were observed are
        not kept: evidence that must survive a restart exactly needs all its data.
        """
        return {"steps": self.steps, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.steps = int(state["steps"])
        self._generator.set_state(state["generator"])


def _evidence(table: ClusteredEmbedding | LooksUpBags, objective: Objective) -> Evidence:
    model = objective if isinstance(objective, nn.Module) else None
    if isinstance(table, ClusteredEmbedding):
        return AutogradEvidence(table, objective, model=model)
    return BagEvidence(table, objective, model=model)
