"""The steps of CEL for tables of several levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from celrec.cel.autograd_evidence import Objective
from celrec.cel.clusterer import Clusterer, ClustererConfig, Move, ScheduledMoves, make_evidence
from celrec.cel.evidence import Evidence
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError


class LevelledClusterer(ScheduledMoves):
    """Splits and reassigns the clusters of all levels of a table while a model is trained.

    Each level has a `Clusterer`, for which the rows of other levels do not change. A level is
    split when the one before it has all its rows, and so refines it; with parts, first levels of
    all parts come first. A reassignment goes through all levels, one after the other.

    >>> _ = torch.manual_seed(0)
    >>> table = LevelledEmbedding(9, 1, max_clusters=3)
    >>> ids, target = torch.arange(9), torch.tensor([0.0, 1, 2, 10, 11, 12, 20, 21, 22])
    >>> objective = lambda rows: (table(ids[rows]).sum(-1) - target[rows]) ** 2
    >>> optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    >>> schedule = {"split_every": 30, "reassign_every": 10}
    >>> clusterer = LevelledClusterer(table, optimizer, objective, **schedule)
    >>> for step in range(200):
    ...     objective(ids).mean().backward()
    ...     optimizer.step(); optimizer.zero_grad()
    ...     moves = clusterer.step(ids)
    >>> [level.num_clusters for level in table.levels], bool((objective(ids) < 0.1).all())
    ([3, 3], True)
    """

    def __init__(
        self,
        table: LevelledEmbedding,
        optimizer: Optimizer | None,
        objective: Objective | Sequence[Evidence],
        config: ClustererConfig | None = None,
        *,
        data: Sequence[Any] | None = None,
        **changes: Any,
    ) -> None:
        """Create a clusterer.

        Args:
            table: The table whose clusters are to be split and reassigned.
            optimizer: Its optimiser; None if there is none, or it keeps no state.
            objective: From a batch to the loss of each sample, or an `Evidence` for each level.
            config: The settings, those of `ClustererConfig()` by default; `max_clusters` is that
                of each level.
            data: All batches, if they are known; else the latest ones are the evidence.
            **changes: Fields of the config by name, such as `split_every=20`.

        """
        config = replace(config or ClustererConfig(), **changes)
        super().__init__(config)
        if isinstance(objective, Sequence):
            several = list(objective)
        else:
            model = objective if isinstance(objective, nn.Module) else None
            several = [
                make_evidence(level, objective, data=data, model=model)
                for level in table.clustered_levels
            ]
        if len(several) != len(table.levels):
            raise CelrecError(
                f"objective: {len(several)} kinds of evidence for {len(table.levels)} levels; give "
                "one for each"
            )
        self.table = table
        levels = zip(table.clustered_levels, several, strict=True)
        self.levels = [
            Clusterer(level, optimizer, evidence, config, seed=config.seed + number)
            for number, (level, evidence) in enumerate(levels)
        ]
        """The clusterers of the levels."""

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimiser, whose state of a row is copied when the row is."""
        return self.levels[0].optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer | None) -> None:
        for level in self.levels:
            level.optimizer = optimizer

    @property
    def num_clusters(self) -> int:
        return self.table.num_clusters

    def observe(self, batch: Any) -> None:
        for level in self.levels:
            level.observe(batch)

    def split(self) -> list[Move]:
        """Split one cluster now, in the first level that has one to split."""
        per = self.table.levels_per_part
        for number in sorted(range(len(self.levels)), key=lambda number: number % per):
            if moves := self.levels[number].split():
                return [self._move(move, number + 1) for move in moves]
        return []

    @torch.no_grad()
    def reassign(self) -> Move:
        """Reassign all members now, in all levels; `moved` counts the ids that changed any code."""
        ids = torch.arange(self.table.num_embeddings, device=self.levels[0].table.weight.device)
        before = self.table.codes(ids)
        for level in self.levels:
            last = level.reassign()
        moved = int((self.table.codes(ids) != before).any(-1).sum())
        return replace(self._move(last), moved=moved)

    def _move(self, move: Move, level: int | None = None) -> Move:
        return replace(move, step=self.steps, clusters=self.num_clusters, level=level)

    def state_dict(self) -> dict[str, Any]:
        """The step count and the states of the clusterers of the levels."""
        return {"steps": self.steps, "levels": [level.state_dict() for level in self.levels]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.steps = int(state["steps"])
        for level, own in zip(self.levels, state["levels"], strict=True):
            level.load_state_dict(own)
