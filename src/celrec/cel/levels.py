"""Levels of clusters: each is grown on what those before it leave, then all are refined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from celrec.cel.clusterer import Clusterer
from celrec.cel.quadratics import MemberQuadratics, QuadraticEvidence
from celrec.cel.reassignment import Reassignment, choose_unseen
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError

_PASSES = 10  # of coordinate descent for bounded rows


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
    refine: int = 4
    non_negative: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.growth <= 1:
            raise CelrecError(f"growth must be a share of the clusters, not {self.growth}")
        for name in ("settle", "refine"):
            if getattr(self, name) < 0:
                raise CelrecError(f"{name} must not be negative, not {getattr(self, name)}")


class LevelFit:
    """Fits codes and rows of a table to the quadratic losses of its ids.

    The vector of an id is the sum of a row of each level. Given the other levels, the loss of an
    id under a row is a quadratic too, so each level is clustered as a table of its own: splits
    along the principal component of the members' gradients, reassignment to the row of least
    loss, and rows that are the best for their members. A clustered table is one level.

    >>> from celrec.cel.quadratics import SharedQuadratics
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> table = LevelledEmbedding(4, 1, max_clusters=2, levels=2)
    >>> fit = LevelFit(table, torch.ones(4), LevelsConfig())
    >>> fit.grow(SharedQuadratics(torch.ones(4), torch.eye(1), points))
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
        self.table, self.config = table, config
        if isinstance(table, LevelledEmbedding):
            self._levels = table.clustered_levels
            self._columns = [table.part_of(number) for number in range(len(self._levels))]
        else:
            self._levels, self._columns = [table], [slice(0, table.embedding_dim)]
        self._evidence = [QuadraticEvidence(level, interactions) for level in self._levels]
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
    def grow(self, members: MemberQuadratics) -> None:
        """From one row a level to all rows, level after level."""
        for level in self._levels:
            level.start_from(torch.zeros(level.num_embeddings, dtype=torch.long))
            level.weight.zero_()
        for number, clusterer in enumerate(self._clusterers):
            self._face(members, number)
            self._solve(number)
            before = 0
            while before < clusterer.table.num_clusters < clusterer.max_clusters:
                before = clusterer.table.num_clusters
                clusterer.split(max(1, int(self.config.growth * before)))
                for _ in range(max(1, self.config.settle)):
                    self._solve(number)
                    clusterer.reassign()
                self._solve(number)
            self.refine(members, self.config.refine, number + 1)

    @torch.no_grad()
    def refine(self, members: MemberQuadratics, sweeps: int, levels: int | None = None) -> None:
        """Solve for the rows and reassign the members of the first `levels` levels, in turn."""
        for _ in range(sweeps):
            for number, clusterer in enumerate(self._clusterers[:levels]):
                self._face(members, number)
                self._solve(number)
                clusterer.reassign()
                self._solve(number)

    def _face(self, members: MemberQuadratics, number: int) -> None:
        """Let a level see what the others leave to it."""
        everyone = torch.arange(self.table.num_embeddings)
        columns, evidence = self._columns[number], self._evidence[number]
        others = members.linear.new_zeros(len(everyone), self.table.embedding_dim)
        for other, level in enumerate(self._levels):
            if other != number:
                others[:, self._columns[other]] += level.vectors(everyone)
        evidence.members = members.beside(others, columns)
        if self.config.non_negative:
            evidence.lowest = -others[:, columns]

    def _solve(self, number: int) -> None:
        """The best rows for the members that each cluster has."""
        level, evidence = self._levels[number], self._evidence[number]
        members, assignment = evidence.members, level.assignment[:-1].long()
        assert members is not None  # noqa: S101  (`_face` has set them)
        count = level.num_clusters
        if evidence.lowest is None:
            rows = members.rows(assignment, count)
        else:
            lowest = torch.full_like(level.weight[:count], -torch.inf).to(members.linear)
            index = assignment[:, None].expand_as(evidence.lowest)
            lowest.scatter_reduce_(0, index, evidence.lowest, "amax")
            rows = members.bounded_rows(
                assignment, level.weight[:count].to(lowest), lowest, _PASSES
            )
        level.weight[:count] = rows.to(level.weight)
        choose_unseen(level)
