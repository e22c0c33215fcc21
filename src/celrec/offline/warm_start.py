"""A fit within the budget of rows: the warmest ids first, all others folded in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.levels import LevelFit
from celrec.cel.quadratics import SharedQuadratics
from celrec.config.offline import CompressionConfig
from celrec.config.plan import FULL_START_BYTES, WARM_START, Plan
from celrec.data.histories import Grouped
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError
from celrec.offline.factorisation_solver import mean_squared_error
from celrec.offline.gibbs import Summands, truncated
from celrec.offline.row_solvers import draw_rows
from celrec.recommender.model import Model

_OTHER = {"users": "items", "items": "users"}
_BLOCK = 1 << 14  # ids whose vectors are in memory at a time
_LEAST_SPREAD = 1e-3  # of the mean variance of a dimension, for one that nobody uses


def starts_warm(plan: Plan, log: Interactions) -> bool:
    """Whether only the warmest ids are fitted first, as memory allows no row for each id."""
    if plan.start is not None or plan.model != "mf":
        return plan.start == WARM_START
    full = plan.full_fit
    dim = 0 if full is None else full.dim + 1
    # The draws, their mean, which has up to four times as many columns, and the model.
    return 4 * 6 * dim * (log.num_users + log.num_items) > FULL_START_BYTES


def warmest(log: Interactions, model: Model) -> Interactions:
    """The interactions of the warmest ids of compressed tables, as many as these have rows.

    They are renumbered. Tables with a row for each id keep all ids that occur.
    """
    log = log.seen()
    keep = np.ones(len(log), bool)
    for side, counts, ids in (
        ("users", log.user_counts, log.user),
        ("items", log.item_counts, log.item),
    ):
        rows = _rows_of(model, side)
        if rows is not None:
            order = np.argsort(-counts, kind="stable")
            warm = np.zeros(len(counts), bool)
            warm[order[:rows]] = True
            keep &= warm[ids]
    return log[keep].compact()


def within(log: Interactions, warm: Interactions) -> Interactions:
    """The interactions of `log` whose user and item are in `warm`, numbered as there."""
    users = warm.user_ids.encode(log.user_ids.ids)[log.user]
    items = warm.item_ids.encode(log.item_ids.ids)[log.item]
    known = (users >= 0) & (items >= 0) & (log.user >= 0) & (log.item >= 0)
    part = log[known]
    return replace(
        part,
        user=users[known],
        item=items[known],
        user_ids=warm.user_ids,
        item_ids=warm.item_ids,
        num_users=warm.num_users,
        num_items=warm.num_items,
        user_features=warm.user_features,
        item_features=warm.item_features,
    )


def _rows_of(model: Model, side: str) -> int | None:
    """How many rows a compressed table may have; None: a row for each id."""
    table = model.tables[side]
    if isinstance(table, ClusteredEmbedding):
        return table.max_clusters
    if isinstance(table, LevelledEmbedding):
        return sum(level.max_clusters for level in table.clustered_levels)
    return None


@dataclass(frozen=True, slots=True)
class Prior:
    """N(mean, precision⁻¹) of vectors with their bias in the last place."""

    mean: NDArray[np.float64]
    precision: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Tensor) -> Prior:
        """The prior that fits some rows, worth a row for each dimension more than there are."""
        found = rows.double().numpy()
        mean, dim = found.mean(0), found.shape[1]
        apart = found - mean
        spread = apart.T @ apart
        spread += np.diag(np.diag(spread) / max(len(found), 1))
        spread[np.diag_indices(dim)] += _LEAST_SPREAD * max(np.trace(spread) / dim, 1e-12)
        return cls(mean, np.linalg.inv(spread / (len(found) + 1)))


class FoldedIn:
    """Where the ids of a side would be with rows of their own, computed when it is asked for.

    The posterior mean of a vector, given the vectors of the other side, from the interactions of
    the id and the prior; so no table of all ids is ever held.
    """

    def __init__(
        self, weights: Tensor, metric: Tensor, posterior_means: Callable[[Tensor], Tensor]
    ) -> None:
        self._weights, self._metric, self._means = weights, metric, posterior_means

    def at(self, members: Tensor) -> SharedQuadratics:
        """The losses of some ids."""
        points = self._means(members)[:, :-1]
        return SharedQuadratics(self._weights[members], self._metric, points)


class WarmFit:
    """Fits a model with biases to a log, with no more rows than its tables have.

    `scaffold` was fitted to the interactions of `warmest`. Then, for each side in turn,

    1. ids are folded in, given the vectors of the other side: a posterior mean each, from its
       interactions and the prior that fits the scaffold's rows;
    2. rows of clusters and levels are fitted to these means, a block of ids at a time; in a
       table with a row for each id, they are its rows. Biases are as folded in.

    Vectors are centred, so that biases need not follow when vectors are approximated.
    """

    def __init__(
        self,
        model: Model,
        scaffold: Model,
        warm: Interactions,
        log: Interactions,
        noise: float,
        config: CompressionConfig,
        seed: int = 0,
    ) -> None:
        """`warm` is what `scaffold` was fitted to, with noise of variance `noise`."""
        if model.biases is None or scaffold.biases is None:
            raise CelrecError("start 'warm' needs biases; take model 'mf', or start 'full'")
        log = log.seen()
        self._model, self._log, self._config, self._noise = model, log, config, noise
        self._groups = {side: Grouped(log, side) for side in _OTHER}
        self._weights = {
            side: torch.from_numpy(group.counts + config.prior)
            for side, group in self._groups.items()
        }
        self._fits = {
            side: LevelFit(table, self._weights[side], config.levels, seed + number)
            for number, (side, table) in enumerate(model.tables.items())
            if isinstance(table, (ClusteredEmbedding, LevelledEmbedding))
        }
        self._biases = {"users": model.biases.users, "items": model.biases.items}
        self._targets: dict[str, NDArray[np.float32]] = {}
        self._priors: dict[str, Prior] = {}
        self._vectors: dict[str, Summands] = {}
        self._begin(scaffold, warm, log)

    @torch.no_grad()
    def run(self) -> None:
        """Grow the shared rows, then refine users and items in turn."""
        for side in ("items", "users"):
            if side in self._fits:
                self._improve(side, grow=True)
        for _ in range(self._config.rounds):
            # What shared rows cannot explain is noise for those of the other side.
            self._noise = mean_squared_error(self._model, self._log)
            for side in ("users", "items"):
                self._improve(side)

    @torch.no_grad()
    def _improve(self, side: str, *, grow: bool = False) -> None:
        """Fit the vectors and biases of a side, given the other."""
        metric = self._centre(_OTHER[side])
        table, ids = self._model.tables[side], torch.arange(len(self._weights[side]))
        means = partial(self._posterior_means, side)
        if side in self._fits:
            members = FoldedIn(self._weights[side], metric, means)
            if grow:
                self._fits[side].grow(members)
            else:
                self._fits[side].refine(members, 1)
        for some in torch.split(ids, _BLOCK):
            found = means(some)
            self._biases[side][some] = found[:, -1].float()
            if isinstance(table, FullEmbedding):
                table.weight[some] = found[:, :-1].float()
        prior = torch.from_numpy(self._priors[side].mean).float()
        self._biases[side][-1] = prior[-1]
        if isinstance(table, FullEmbedding):
            table.weight[-1] = prior[:-1]
        self._vectors[side] = _summands(table)

    def _posterior_means(self, side: str, ids: Tensor) -> Tensor:
        """Of the vectors of some ids, with their biases in the last place."""
        other, prior = _OTHER[side], self._priors[side]
        group = self._groups[side]
        targets = self._targets[side] - self._biases[other].numpy()[group.partners.numpy()]
        data, right = self._vectors[other].normal_equations(group, targets, ids.numpy())
        found = np.empty(right.shape, np.float32)
        draw_rows(
            data.numpy(),
            right.numpy(),
            prior.precision,
            prior.precision @ prior.mean,
            1 / self._noise,
            np.zeros(right.shape),
            found,
        )
        return torch.from_numpy(found).double()

    def _centre(self, side: str) -> Tensor:
        """Σ w·a·aᵀ of a side, after its weighted mean was taken off."""
        vectors, weights = self._vectors[side], self._weights[side]
        codes = torch.from_numpy(vectors.codes).long()
        rows = torch.from_numpy(vectors.rows)  # the same memory
        total = torch.zeros(rows.shape[2], dtype=torch.float64)
        for level, row in zip(codes.T, rows, strict=True):
            sums = torch.bincount(level, weights, minlength=len(row))
            total += sums[: len(row)] @ row.double()
        table = self._model.tables[side]
        first = table.clustered_levels[0] if isinstance(table, LevelledEmbedding) else table
        mean = (total / weights.sum()).float()
        rows[0] -= mean
        first.weight -= mean  # type: ignore[operator]
        metric = torch.zeros(len(total), len(total), dtype=torch.float64)
        for some in torch.split(torch.arange(len(codes)), _BLOCK):
            found = sum(row[code] for row, code in zip(rows, codes[some].T, strict=True)).double()
            metric += found.T @ (weights[some, None] * found)
        metric.diagonal().add_(_LEAST_SPREAD * float(metric.diagonal().mean()))
        return metric

    @torch.no_grad()
    def _begin(self, scaffold: Model, warm: Interactions, log: Interactions) -> None:
        """Vectors of warm ids, the prior's mean for all others, and the targets of the ids."""
        known, model = scaffold.biases, self._model.biases
        assert known is not None  # noqa: S101  (checked before)
        assert model is not None  # noqa: S101
        counts = {"users": warm.user_counts, "items": warm.item_counts}
        maps = {"users": (log.user_ids, warm.user_ids), "items": (log.item_ids, warm.item_ids)}
        dim = self._model.tables["items"].embedding_dim
        factors = {
            side: table.weight.detach().double() for side, table in scaffold.row_tables.items()
        }
        weights = {side: torch.from_numpy(np.append(count, 0.0)) for side, count in counts.items()}
        means = {side: weights[side] @ factors[side] / weights[side].sum() for side in factors}
        biases = {
            "users": known.users.double() + (factors["users"] - means["users"]) @ means["items"],
            "items": known.items.double() + (factors["items"] - means["items"]) @ means["users"],
        }
        mean = float(known.mean) + float(means["users"] @ means["items"])
        model.mean.fill_(mean)
        apart = {side: factors[side] - means[side] for side in factors}
        rows = dict(zip(apart, truncated(apart["users"], apart["items"], dim), strict=True))
        for side, (every, some) in maps.items():
            places = some.encode(every.ids)[: len(self._weights[side])]
            codes = np.where(places < 0, len(some), places).astype(np.int32)
            own = torch.cat([rows[side], biases[side][:, None]], 1)
            self._priors[side] = Prior.of(own[:-1])
            table = rows[side].float().clone()
            table[-1] = torch.from_numpy(self._priors[side].mean[:-1])
            self._vectors[side] = Summands(table[None].numpy(), codes[:, None])
            self._biases[side][:-1] = biases[side].float()[torch.from_numpy(codes).long()]
            self._targets[side] = (log.target[self._groups[side].order] - mean).astype(np.float32)


def _summands(table: Embedding) -> Summands:
    """The vectors of all known ids; the rows are copies."""
    ids = torch.arange(table.num_embeddings)
    if isinstance(table, LevelledEmbedding):
        rows = torch.stack([level.weight.detach() for level in table.clustered_levels])
        return Summands(rows.clone().numpy(), table.codes(ids).int().numpy())
    assert isinstance(table, SharedRows)  # noqa: S101  (of clusters, or full)
    codes = table.row_of(ids).int().numpy()[:, None]
    return Summands(table.weight.detach()[None].clone().numpy(), codes)
