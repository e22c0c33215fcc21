"""Codes of ids where all have one curvature: found for all levels jointly, or by k-means."""

from __future__ import annotations

import torch
from torch import Tensor

from celrec.cel.levels import LevelsConfig
from celrec.cel.quadratics import MemberSource, SharedQuadratics
from celrec.cel.reassignment import choose_unseen
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.kmeans import k_means, nearest
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError

_RESTARTS = 3  # of k-means, from other points
_BEAM = 8  # codes of the first levels that are kept while those of further ones are tried
_TRIED = 512  # codes of the first levels times rows of the next, at most
_LLOYD = 8  # steps for the first rows of a level
_RIDGE = 1e-3  # of the mean weight of a row: rows of levels are determined up to constants
_MOST_ROWS = 1536  # of all levels, that are solved for at once


class AdditiveFit:
    """Fits codes and rows of all levels jointly, by beam search and least squares.

    Quadratics w_j·(v − m_j)ᵀ·M·(v − m_j) are squared distances in the coordinates M^½·v, so the
    levels are an additive quantiser of weighted points. Each level starts with k-means of what
    those before it leave over. A sweep then solves for the rows of all levels at once; searches
    for better codes of each id, level by level, with the best few sums so far (a beam); and
    changes one level after the other, as `LevelFit` does. The error never rises by a search,
    since an id that finds nothing better keeps its codes.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> table = LevelledEmbedding(4, 1, max_clusters=2, levels=2)
    >>> fit = AdditiveFit(table, LevelsConfig())
    >>> fit.grow(SharedQuadratics(torch.ones(4), torch.eye(1), points))
    >>> table(torch.arange(4)).flatten().round(decimals=2).tolist()
    [0.0, 1.0, 10.0, 11.0]
    """

    def __init__(
        self,
        table: ClusteredEmbedding | LevelledEmbedding,
        config: LevelsConfig,
        seed: int = 0,
    ) -> None:
        if config.non_negative:
            raise CelrecError("non_negative: sums of joint codes may be negative; take codes 'cel'")
        self.table, self.config, self._seed = table, config, seed
        if isinstance(table, LevelledEmbedding) and table.parts > 1:
            raise CelrecError(f"parts must be 1 for joint codes, not {table.parts}")
        self._levels = _levels(table)
        self._rows: list[Tensor] = []
        self._codes: list[Tensor] = []

    @torch.no_grad()
    def grow(self, members: MemberSource) -> None:
        """Rows and codes of all levels anew."""
        points, weights, root = self._whitened(members)
        generator = torch.Generator().manual_seed(self._seed)
        self._rows, self._codes = [], []
        for level in self._levels:
            left = points - self._sums() if self._rows else points
            rows = k_means(left, level.max_clusters, generator, _LLOYD, weights)
            self._rows.append(rows)
            self._codes.append(nearest(left, rows)[0])
            self._improve_in_turn(points, weights)
        for _ in range(self.config.refine):
            self._sweep(points, weights)
        self._write(root)

    @torch.no_grad()
    def refine(self, members: MemberSource, sweeps: int) -> None:
        """Improve rows and codes of all levels."""
        points, weights, root = self._whitened(members)
        self._rows = [
            (level.weight[: level.num_clusters].to(root) @ root).to(points)
            for level in self._levels
        ]
        for _ in range(sweeps):
            self._sweep(points, weights)
        self._write(root)

    def _sweep(self, points: Tensor, weights: Tensor) -> None:
        if len(self._rows) > 1:
            if sum(map(len, self._rows)) <= _MOST_ROWS:
                self._solve(points, weights)
            self._search(points)
        self._improve_in_turn(points, weights)

    def _sums(self) -> Tensor:
        parts = [rows[codes] for rows, codes in zip(self._rows, self._codes, strict=True)]
        return torch.stack(parts).sum(0)

    def _improve_in_turn(self, points: Tensor, weights: Tensor) -> None:
        """Codes of one level given the others, then its rows: a step of k-means in each level."""
        sums = self._sums()
        for number, rows in enumerate(self._rows):
            left = points - sums + rows[self._codes[number]]
            codes, _ = nearest(left, rows)
            total = weights.new_zeros(len(rows)).index_add_(0, codes, weights)
            means = torch.zeros_like(rows).index_add_(0, codes, weights[:, None] * left)
            means = torch.where(total[:, None] > 0, means / total.clamp(min=1e-30)[:, None], rows)
            self._rows[number], self._codes[number] = means, codes
            sums = points - left + means[codes]

    def _solve(self, points: Tensor, weights: Tensor) -> None:
        """The rows of all levels with the least weighted squared error for the codes."""
        before = torch.cat(self._rows).double()
        sizes = [len(rows) for rows in self._rows]
        firsts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        codes = torch.stack(self._codes, 1) + firsts
        count, heavy = len(before), weights.double()
        matrix = heavy.new_zeros(count * count)
        right = torch.zeros_like(before)
        for own in codes.T:
            right.index_add_(0, own, heavy[:, None] * points)
            for other in codes.T:
                matrix.index_add_(0, own * count + other, heavy)
        matrix = matrix.view(count, count)
        ridge = _RIDGE * float(matrix.diagonal().mean())
        matrix.diagonal().add_(ridge)
        solved = torch.linalg.solve(matrix, right + ridge * before)
        self._rows = list(solved.to(points).split(sizes))

    def _search(self, points: Tensor) -> None:
        """Better codes of all ids by a beam over the levels."""
        left = points[:, None]
        codes = points.new_zeros(len(points), 1, 0, dtype=torch.long)
        for number, rows in enumerate(self._rows):
            errors = left.square().sum(2)[:, :, None] + rows.square().sum(1) - 2 * left @ rows.T
            errors = errors.flatten(1)
            kept = 1  # of the last level; of others as many as the next one can try
            if number < len(self._rows) - 1:
                most = max(_TRIED // len(self._rows[number + 1]), 1)
                kept = min(_BEAM, most, errors.shape[1])
            best = errors.topk(kept, largest=False).indices
            origin, code = best // len(rows), best % len(rows)
            earlier = codes.gather(1, origin[:, :, None].expand(-1, -1, codes.shape[2]))
            codes = torch.cat([earlier, code[:, :, None]], 2)
            left = left.gather(1, origin[:, :, None].expand(-1, -1, left.shape[2])) - rows[code]
        better = left[:, 0].square().sum(1) < (points - self._sums()).square().sum(1)
        self._codes = [
            torch.where(better, found, own)
            for found, own in zip(codes[:, 0].T, self._codes, strict=True)
        ]

    def _whitened(self, members: MemberSource) -> tuple[Tensor, Tensor, Tensor]:
        """Points in coordinates where the metric is the identity, weights, and M^½."""
        known = _shared(members, self.table.num_embeddings)
        values, vectors = torch.linalg.eigh(known.metric)
        root = vectors * values.clamp(min=1e-12 * float(values[-1])).sqrt()
        return (known.points @ root).float(), known.weight.float(), root

    def _write(self, root: Tensor) -> None:
        """Tables get the rows and codes; rows without members are left out."""
        for number, level in enumerate(self._levels):
            used, labels = torch.unique(self._codes[number], return_inverse=True)
            self._rows[number], self._codes[number] = self._rows[number][used], labels
            level.start_from(labels)
            rows = torch.linalg.solve(root.T, self._rows[number].to(root).T).T
            level.weight[: len(used)] = rows.to(level.weight)
            choose_unseen(level)


def _shared(members: MemberSource, ids: int) -> SharedQuadratics:
    """The quadratics of all ids, which must have one metric."""
    found = members.at(torch.arange(ids))
    if not isinstance(found, SharedQuadratics):
        raise CelrecError("members must have one metric for these codes; take codes 'cel'")
    return found


def _levels(table: ClusteredEmbedding | LevelledEmbedding) -> list[ClusteredEmbedding]:
    return table.clustered_levels if isinstance(table, LevelledEmbedding) else [table]


def _columns(table: ClusteredEmbedding | LevelledEmbedding) -> list[slice]:
    if isinstance(table, LevelledEmbedding):
        return [table.part_of(number) for number in range(len(table.levels))]
    return [slice(0, table.embedding_dim)]


class KMeansFit:
    """Codes by k-means of the ids' own vectors, and rows that are the best for these codes.

    A level is clustered by what the centroids of those before it leave over: with several levels
    of all columns these are residual codes (RQ), with several parts product codes (PQ). Of a few
    runs of k-means, the one with the least sum of squares counts. Rows are then solved for, level
    by level given the others, and codes stay as they are.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> table = ClusteredEmbedding(4, 1, max_clusters=2)
    >>> fit = KMeansFit(table, LevelsConfig())
    >>> fit.grow(SharedQuadratics(torch.tensor([1.0, 3, 1, 1]), torch.eye(1), points))
    >>> table(torch.arange(4)).flatten().tolist()
    [0.75, 0.75, 10.5, 10.5]
    """

    def __init__(
        self,
        table: ClusteredEmbedding | LevelledEmbedding,
        config: LevelsConfig,
        seed: int = 0,
        *,
        weighted: bool = False,
    ) -> None:
        """With `weighted`, points count in k-means as much as their members weigh."""
        if config.non_negative:
            raise CelrecError("non_negative: rows of k-means may be negative; take codes 'cel'")
        self.table, self.config = table, config
        self._seed, self._weighted = seed, weighted
        self._levels, self._columns = _levels(table), _columns(table)

    @torch.no_grad()
    def grow(self, members: MemberSource) -> None:
        """Codes by k-means of the points of the members, and rows for them."""
        known = _shared(members, self.table.num_embeddings)
        left = known.points.clone()
        weights = known.weight if self._weighted else torch.ones_like(known.weight)
        for level, columns in zip(self._levels, self._columns, strict=True):
            centroids = self._centroids(left[:, columns], weights, level.max_clusters)
            codes, _ = nearest(left[:, columns], centroids)
            used, labels = torch.unique(codes, return_inverse=True)
            level.start_from(labels)
            level.weight[: len(used)] = centroids[used].to(level.weight)
            left[:, columns] -= centroids[used][labels]
        self.refine(members, self.config.refine)

    @torch.no_grad()
    def refine(self, members: MemberSource, sweeps: int) -> None:
        """Solve for the rows of each level in turn."""
        known = _shared(members, self.table.num_embeddings)
        ids = torch.arange(self.table.num_embeddings)
        for _ in range(sweeps):
            for level, columns in zip(self._levels, self._columns, strict=True):
                others = self.table.vectors(ids).to(known.points)
                others[:, columns] -= level.vectors(ids)
                matrices, right = known.beside(others, columns).sums(
                    level.row_of(ids), level.num_clusters
                )
                rows = torch.linalg.solve(matrices, right)
                level.weight[: level.num_clusters] = rows.to(level.weight)
        for level in self._levels:
            choose_unseen(level)

    def _centroids(self, points: Tensor, weights: Tensor, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed)
        found = [k_means(points, count, generator, weights=weights) for _ in range(_RESTARTS)]
        errors = [float(weights @ nearest(points, one)[1]) for one in found]
        return found[errors.index(min(errors))]
