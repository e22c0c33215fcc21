"""Compression of a fitted factorisation: rows shared in clusters and levels, without the data."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.codes import AdditiveFit, KMeansFit
from celrec.cel.levels import LevelFit
from celrec.cel.quadratics import SharedQuadratics
from celrec.config.offline import CompressionConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError
from celrec.offline.gibbs import truncated
from celrec.recommender.model import Model

_PASSES = 3  # of coordinate descent over the columns of non-negative vectors
_RIDGE = 1e-6  # of the mean of a metric's diagonal, where factors use fewer dimensions
_SWEEPS = 100  # of the non-negative factorisation of a model's predictions
_OTHER = {"users": "items", "items": "users"}


class Compression:
    """Fits a model with few rows to the predictions of a model with a row for each id.

    With pairs weighted by w_i·w_j, the squared difference of the predictions is, in the vectors
    v_j of items given those of users a_i,

        Σ_j w_j·(v_j − m_j)ᵀ·M·(v_j − m_j) + constant,    M = Σ_i w_i·a_i·a_iᵀ,

    and the same holds for users given items: one curvature for all ids of a side. Rows of
    clusters and levels are fitted to it by `LevelFit`; ids with rows of their own get m_j. No
    pass over the interactions is needed. An id weighs as many interactions as it has, and a few
    more (`CompressionConfig.prior`).

    Biases of ids are copied where the model has tables for them; else they are a column of the
    rows, and shared as these are.
    """

    def __init__(
        self,
        model: Model,
        full: Model,
        log: Interactions,
        config: CompressionConfig,
        seed: int = 0,
    ) -> None:
        """`full` was fitted to `log`; `model` has the same ids."""
        if not (full.model.bilinear and model.model.bilinear):
            raise CelrecError(
                f"full: {type(full.model).__name__} is not a dot product; give a factorisation"
            )
        self._model, self._config, self._seed = model, config, seed
        self._grown = not config.codes.endswith("k-means")
        self._weights = {
            "users": _weights(log.user_counts, config.prior),
            "items": _weights(log.item_counts, config.prior),
        }
        self._tables = model.tables
        self._extra = model.model.extra_columns if model.biases is None else 0
        self._factors, self._vectors = self._targets(full)
        self._fits = {
            side: self._fit(table, side, seed + number)
            for number, (side, table) in enumerate(self._tables.items())
            if isinstance(table, (ClusteredEmbedding, LevelledEmbedding))
        }

    def _fit(
        self, table: ClusteredEmbedding | LevelledEmbedding, side: str, seed: int
    ) -> LevelFit | AdditiveFit | KMeansFit:
        codes, levels = self._config.codes, self._config.levels
        if codes == "joint":
            return AdditiveFit(table, levels, seed)
        if codes == "cel":
            return LevelFit(table, self._weights[side][:-1], levels, seed)
        return KMeansFit(table, levels, seed, weighted=codes == "weighted-k-means")

    @torch.no_grad()
    def run(self) -> None:
        """Grow the shared rows of items, then those of users, then refine all in turn."""
        first = {side: self._quadratics(side) for side in self._fits}
        for side in ("items", "users"):
            if side in self._fits:
                # k-means is of fitted rows; clusters grow on what the other side has become.
                members = self._quadratics(side) if self._grown else first[side]
                ids = torch.arange(self._tables[side].num_embeddings)
                self._fits[side].grow(members.at(ids))
                self._follow(side)
        for _ in range(self._config.rounds):
            for side in ("users", "items"):
                self._improve(side)
        for side in _OTHER:
            self._improve(side)
            self._write(side)

    def _improve(self, side: str) -> None:
        members = self._quadratics(side)
        if side in self._fits:
            self._fits[side].refine(members.at(torch.arange(self._tables[side].num_embeddings)), 1)
            self._follow(side)
        elif self._config.levels.non_negative:
            self._vectors[side] = _descended(self._vectors[side], members, _PASSES)
        else:
            self._vectors[side] = members.points

    def _quadratics(self, side: str) -> SharedQuadratics:
        """The losses of the ids of a side, given the vectors of the other."""
        return self._members(side, self._vectors, self._factors)

    def _members(
        self, side: str, vectors: dict[str, Tensor], factors: dict[str, Tensor]
    ) -> SharedQuadratics:
        other = _OTHER[side]
        partners = design = vectors[other]
        if self._extra:  # a partner's bias is added, whatever the row is
            design = torch.cat([partners[:, :-1], torch.ones_like(partners[:, :1])], 1)
        weighted = self._weights[other][:, None] * design
        metric = weighted.T @ design
        # Of a single user or item, the centred factors are zeros.
        metric.diagonal().add_(_RIDGE * float(metric.diagonal().mean()) or 1.0)
        right = factors[side] @ (factors[other].T @ weighted)
        if self._extra:
            right -= partners[:, -1] @ weighted
        points = torch.linalg.solve(metric, right.T).T
        return SharedQuadratics(self._weights[side], metric, points)

    def _follow(self, side: str) -> None:
        """Take over the vectors of a table with shared rows."""
        table = self._tables[side]
        ids = torch.arange(-1, table.num_embeddings).roll(-1)  # that of unseen ids is the last
        self._vectors[side] = table.vectors(ids).to(self._factors[side])

    def _write(self, side: str) -> None:
        table = self._tables[side]
        if isinstance(table, FullEmbedding):
            table.weight.copy_(self._vectors[side])

    @torch.no_grad()
    def _targets(self, full: Model) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Factors of the predictions, F_user · F_itemᵀ, and the vectors to begin with.

        Predictions of a model with biases are told from their weighted means, of all pairs, of
        each user and of each item; what is left over is orthogonal to constants, so that biases
        need not follow when it is approximated.
        """
        factors = _factors_of(full)
        dim = self._tables["items"].embedding_dim - self._extra
        if not self._model.model.extra_columns:
            if not self._config.levels.non_negative:
                users, items = truncated(factors["users"], factors["items"], dim)
                return factors, {"users": users, "items": items}
            return factors, self._non_negative_factors(factors, dim)
        means = {
            side: self._weights[side] @ own / self._weights[side].sum()
            for side, own in factors.items()
        }
        biases = {side: (factors[side] - means[side]) @ means[_OTHER[side]] for side in factors}
        self._model.model.set_mean(float(means["users"] @ means["items"]))
        apart = {side: own - means[side] for side, own in factors.items()}
        users, items = truncated(apart["users"], apart["items"], dim)
        vectors = {"users": users, "items": items}
        known = self._model.biases
        if known is not None:
            known.users.copy_(biases["users"])
            known.items.copy_(biases["items"])
            return vectors, dict(vectors)
        begin = {side: torch.cat([own, biases[side][:, None]], 1) for side, own in vectors.items()}
        one = {side: torch.ones_like(bias)[:, None] for side, bias in biases.items()}
        return {
            "users": torch.cat([begin["users"], one["users"]], 1),
            "items": torch.cat([vectors["items"], one["items"], biases["items"][:, None]], 1),
        }, begin

    def _non_negative_factors(self, factors: dict[str, Tensor], dim: int) -> dict[str, Tensor]:
        """Non-negative vectors with about the same products, by alternating least squares."""
        generator = torch.Generator().manual_seed(self._seed)
        level = (factors["users"].mean(0) @ factors["items"].mean(0)).clamp(min=1e-6)
        vectors = {}
        for side, own in factors.items():
            drawn = torch.rand(len(own), dim, generator=generator, dtype=own.dtype)
            vectors[side] = drawn * (4 * level / dim).sqrt()
        for _ in range(_SWEEPS):
            for side in vectors:
                members = self._members(side, vectors, factors)
                vectors[side] = _descended(vectors[side], members, 1)
        return vectors


def _factors_of(full: Model) -> dict[str, Tensor]:
    """Predictions of all pairs of users and items as F_user · F_itemᵀ."""
    with torch.no_grad():
        factors = {}
        for side, table in full.whole_tables.items():
            ids = torch.arange(-1, table.num_embeddings).roll(-1)
            factors[side] = table.vectors(ids).double()
    if not full.model.extra_columns:
        return factors
    users, items = factors["users"], factors["items"]
    one = torch.ones_like(users[:, :1]), torch.ones_like(items[:, :1])
    mean, _ = full.model.line(torch.zeros(users.shape[1]))
    return {
        "users": torch.cat([users[:, :-1], users[:, -1:] + mean, one[0]], 1),
        "items": torch.cat([items[:, :-1], one[1], items[:, -1:]], 1),
    }


def _weights(counts: NDArray[np.int64], prior: float) -> Tensor:
    """Of all ids, with 0 for unseen ids in the last place."""
    return torch.from_numpy(np.append(counts + prior, 0.0))


def _descended(vectors: Tensor, members: SharedQuadratics, passes: int) -> Tensor:
    """Vectors of ids with rows of their own, not below 0, by coordinate descent."""
    vectors = vectors.clone()
    metric = members.metric
    slopes = (vectors - members.points) @ metric
    for _ in range(passes):
        for column in range(vectors.shape[1]):
            change = -slopes[:, column] / metric[column, column]
            change = torch.maximum(change, -vectors[:, column])
            vectors[:, column] += change
            slopes += change[:, None] * metric[column]
    return vectors
