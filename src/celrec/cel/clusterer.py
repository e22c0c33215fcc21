"""The steps of CEL as one more object in a training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from celrec.cel.autograd_evidence import AutogradEvidence, BagEvidence, Objective
from celrec.cel.criteria import CRITERIA, ClusterSums
from celrec.cel.evidence import Evidence
from celrec.cel.reassignment import Reassignment, choose_unseen
from celrec.cel.split import Members, Splitter, choose_cluster
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import LooksUpBags
from celrec.embeddings.id_rows import copy_row_state
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class ClustererConfig:
    """When clusters are split and members reassigned, and how. Periods of 0 mean never."""

    split_every: int = 10
    """Steps of the optimiser from one split to the next."""
    growth: float = 0.0
    """The share of the clusters that is split at a time; at least one is."""
    reassign_every: int = 40
    """Steps of the optimiser from one reassignment to the next."""
    max_clusters: int | None = None
    """Where splits end; None: as many as the table has rows."""
    criterion: str = "interactions"
    """Which cluster is split first: a name in `CRITERIA`."""
    splitter: Splitter = field(default_factory=Splitter)
    reassignment: Reassignment = field(default_factory=Reassignment)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split_every < 0 or self.reassign_every < 0:
            raise CelrecError(
                "split_every and reassign_every must not be negative, "
                f"not {self.split_every} and {self.reassign_every}"
            )
        if not 0 <= self.growth <= 1:
            raise CelrecError(f"growth must be a share of the clusters, not {self.growth}")
        if self.criterion not in CRITERIA:
            raise CelrecError(
                f"criterion must be one of {', '.join(CRITERIA)}, not {self.criterion!r}"
            )


@dataclass(frozen=True, slots=True)
class Move:
    """A split or a reassignment that took place."""

    step: int
    kind: str
    """`split` or `reassign`."""
    moved: int
    """The number of ids that changed their cluster."""
    clusters: int
    """The number of clusters afterwards."""
    cluster: int | None = None
    """The cluster that was split."""
    level: int | None = None
    """The level of the table that it is in, from 1, if the table has several."""


class ScheduledMoves(ABC):
    """Splits and reassignments every so many steps of an optimiser."""

    def __init__(self, config: ClustererConfig) -> None:
        self.split_every, self.reassign_every = config.split_every, config.reassign_every
        self.growth, self.steps = config.growth, 0

    def step(self, batch: Any = None) -> list[Move]:
        """Split and reassign if it is time to; to be called after each step of the optimiser."""
        self.observe(batch)
        self.steps += 1
        moves = []
        if self.reassign_every and self.steps % self.reassign_every == 0:
            moves.append(self.reassign())
        if self.split_every and self.steps % self.split_every == 0:
            for _ in range(max(1, int(self.growth * self.num_clusters))):
                moves += self.split()
        return moves

    @property
    @abstractmethod
    def num_clusters(self) -> int:
        """The number of active clusters."""

    @abstractmethod
    def observe(self, batch: Any) -> None:
        """Take notice of a batch that was trained on."""

    @abstractmethod
    def split(self) -> list[Move]:
        """Split one cluster now; no move if `max_clusters` is reached or none can be split."""

    @abstractmethod
    def reassign(self) -> Move:
        """Reassign all members now."""


class Clusterer(ScheduledMoves):
    """Splits clusters of one table and reassigns their members while a model is trained.

    Every `split_every` steps the cluster that ranks highest by `criterion` is split by
    `splitter`, until `max_clusters`; with `growth` that share of the clusters, one after
    the other. Every `reassign_every` steps all members are reassigned by `reassignment`.
    The gradients and losses that this takes come from the objective, the loss per sample
    of a batch, or from an `Evidence`.

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
        config: ClustererConfig | None = None,
        **changes: Any,
    ) -> None:
        """Create a clusterer.

        Args:
            table: The table whose clusters are to be split and reassigned.
            optimizer: Its optimiser, whose state of a row is copied when the row is; None if
                there is none, or it keeps no state.
            objective: From a batch to the loss of each sample, or an `Evidence`.
            config: The settings, those of `ClustererConfig()` by default.
            **changes: Fields of the config by name, such as `split_every=20`.

        """
        config = replace(config or ClustererConfig(), **changes)
        super().__init__(config)
        if isinstance(table, LevelledEmbedding):
            raise CelrecError("table is a LevelledEmbedding; take a LevelledClusterer for it")
        if not isinstance(objective, Evidence):
            model = objective if isinstance(objective, nn.Module) else None
            objective = make_evidence(table, objective, model=model)
        if not isinstance(table, ClusteredEmbedding):
            table = table.table
        limit = config.max_clusters
        if limit is not None and not 1 <= limit <= table.max_clusters:
            raise CelrecError(f"max_clusters must lie in 1 … {table.max_clusters}, not {limit}")
        self.table, self.optimizer = table, optimizer
        self.evidence: Evidence = objective
        self.criterion = config.criterion
        self.max_clusters = limit or table.max_clusters
        self.splitter, self.reassignment = config.splitter, config.reassignment
        self._generator = torch.Generator().manual_seed(config.seed)

    @property
    def num_clusters(self) -> int:
        return self.table.num_clusters

    def observe(self, batch: Any) -> None:
        self.evidence.observe(batch)

    @torch.no_grad()
    def split(self) -> list[Move]:
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

        The table and the optimiser have states of their own. Observed batches are not
        saved: evidence that has to survive a restart exactly needs all its data.
        """
        return {"steps": self.steps, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.steps = int(state["steps"])
        self._generator.set_state(state["generator"])


def make_evidence(
    table: ClusteredEmbedding | LooksUpBags,
    objective: Objective,
    *,
    data: Sequence[Any] | None = None,
    model: nn.Module | None = None,
) -> AutogradEvidence:
    """Evidence by autograd, for ids that are looked up one by one or in bags."""
    if isinstance(table, ClusteredEmbedding):
        return AutogradEvidence(table, objective, data=data, model=model)
    return BagEvidence(table, objective, data=data, model=model)
