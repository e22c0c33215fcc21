"""Levels of clusters: each is grown on what those before it leave, then all are refined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from celrec.cel.clusterer import Clusterer
from celrec.cel.quadratics import MemberSource, QuadraticEvidence
from celrec.cel.reassignment import Reassignment, choose_unseen
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class LevelsConfig:
    """How the levels of a table are grown and refined.

    A level is split by the share `growth` of its clusters at a time, those first whose members
    would gain most from rows of their own; after each time, rows are solved for and members
    reassigned `settle` times. When a level has all its rows, `refine` sweeps solve for the rows
    and reassign the members of all levels so far. With `non_negative`, no sum of rows is below 0.
    """

    growth: float = 0.15
    settle: int = 1
    refine: int = 8
    non_negative: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.growth <= 1:
            raise CelrecError(f"growth must be a share of the clusters, not {self.growth}")
        if self.settle < 1:
            raise CelrecError(f"settle must be positive, not {self.settle}")
        if self.refine < 0:
            raise CelrecError(f"refine must not be negative, not {self.refine}")


class LevelFit:
    """Fits codes and rows of a table to the quadratic losses of its ids.

    The vector of an id is the sum of a row of each level. Given the other levels, the loss of an
    id under a row is a quadratic too, so each level is clustered as a table of its own: splits
    along the principal component of the members' gradients, reassignment to the row of least
    loss, and rows that are the best for their members. A clustered table is one level.

    >>> from celrec.cel.quadratics import SharedQuadratics
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]]).double()
    >>> ones = torch.ones(4).double()
    >>> table = LevelledEmbedding(4, 1, max_clusters=2, levels=2)
    >>> fit = LevelFit(table, ones, LevelsConfig())
    >>> fit.grow(SharedQuadratics(ones, torch.eye(1).double(), points))
    >>> table(torch.arange(4)).flatten().tolist()
    [0.0, 1.0, 10.0, 11.0]
    """

    def __init__(
        self,
        table: ClusteredEmbedding | LevelledEmbedding,
        interactions: Tensor,
        config: LevelsConfig,
        seed: int = 0,
    ) -> None:
        """`interactions` has the number of interactions of each id."""
        self.table, self.config, self._seed = table, config, seed
        if isinstance(table, LevelledEmbedding):
            self._levels = table.clustered_levels
            self._columns = [table.part_of(number) for number in range(len(self._levels))]
        else:
            self._levels, self._columns = [table], [slice(0, table.embedding_dim)]
        self._evidence = [
            QuadraticEvidence(level, interactions, columns)
            for level, columns in zip(self._levels, self._columns, strict=True)
        ]
        for number, evidence in enumerate(self._evidence):
            evidence.non_negative = config.non_negative
            if len(self._levels) > 1:
                evidence.others = partial(self._others, number)
        self._clusterers = [
            Clusterer(
                *(level, None, evidence),
                criterion="gain",
                reassignment=Reassignment(keep=0.0),
                seed=seed + number,
            )
            for number, (level, evidence) in enumerate(
                zip(self._levels, self._evidence, strict=True)
            )
        ]

    @torch.no_grad()
    def grow(self, members: MemberSource) -> None:
        """From one row a level to all rows, level after level."""
        for level in self._levels:
            level.start_from(torch.zeros(level.num_embeddings, dtype=torch.long))
            level.weight.zero_()
        self._see(members)
        for number, clusterer in enumerate(self._clusterers):
            evidence, before = self._evidence[number], 0
            evidence.solve_rows()
            while before < clusterer.table.num_clusters < clusterer.max_clusters:
                before = clusterer.table.num_clusters
                clusterer.split(max(1, int(self.config.growth * before)))
                for _ in range(self.config.settle):
                    evidence.solve_rows()
                    clusterer.reassign()
                evidence.solve_rows()
            self._refine(self.config.refine, number + 1)
        self._choose_unseen()

    @torch.no_grad()
    def refine(self, members: MemberSource, sweeps: int) -> None:
        """Solve for the rows and reassign the members of each level in turn."""
        self._see(members)
        self._refine(sweeps, len(self._levels))
        self._choose_unseen()

    def _refine(self, sweeps: int, levels: int) -> None:
        for _ in range(sweeps):
            for evidence, clusterer in zip(
                self._evidence[:levels], self._clusterers[:levels], strict=True
            ):
                evidence.solve_rows()
                clusterer.reassign()
                evidence.solve_rows()

    def _see(self, members: MemberSource) -> None:
        for evidence in self._evidence:
            evidence.members = members

    def _choose_unseen(self) -> None:
        for level in self._levels:
            choose_unseen(level)

    def _others(self, number: int, ids: Tensor) -> Tensor:
        """What the other levels add to the vectors of some ids."""
        added = torch.zeros(len(ids), self.table.embedding_dim, dtype=torch.float64)
        for other, (level, columns) in enumerate(zip(self._levels, self._columns, strict=True)):
            if other != number:
                added[:, columns] += level.vectors(ids)
        return added
