"""Bayesian matrix factorisation by Gibbs sampling: rows and their priors are drawn, not fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.config.offline import GibbsConfig
from celrec.data.histories import Grouped
from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.errors import CelrecError
from celrec.offline.factorisation_solver import mean_squared_error, partition_of_users
from celrec.offline.kernels import outer_sums
from celrec.offline.row_solvers import draw_rows
from celrec.offline.solver import Solver
from celrec.recommender.model import Model
from celrec.runtime.communicator import LOCAL, WHOLE, Communicator

_BATCH = 1 << 22  # numbers in the matrices of one batch of rows
_START = 0.1  # the deviation of the first rows, where biases explain most of a rating
_LEAST_NOISE = 1e-4  # of the variance of the targets; few targets could be fitted without error
_WIDEST = 4  # times the rank: how many columns the mean may have before it is truncated


class LowRankMean:
    """The mean of matrices A·Bᵀ, kept as a product with few columns.

    Means of many draws from a posterior are close to low rank: what differs from draw to draw
    averages out. So the sum is truncated by its singular values whenever it has become wide.

    >>> mean = LowRankMean(1)
    >>> for scale in (1.0, 2.0, 3.0):
    ...     mean.add(scale * torch.ones(3, 1), torch.ones(2, 1))
    >>> left, right = mean.factors(1)
    >>> (left @ right.T).round(decimals=4).tolist()
    [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.count = rank, 0
        self._left = self._right = torch.empty(0, 0)

    def add(self, left: Tensor, right: Tensor) -> None:
        """Take one more matrix left·rightᵀ into the mean."""
        if not self.count:
            self._left, self._right = left[:, :0], right[:, :0]
        self.count += 1
        weight = 1 / self.count
        self._left = torch.cat([self._left * (1 - weight), left * weight], 1)
        self._right = torch.cat([self._right, right], 1)
        if self._left.shape[1] > _WIDEST * self.rank:
            self._left, self._right = truncated(self._left, self._right, 2 * self.rank)

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """The mean truncated to a rank: two factors with columns of equal norms."""
        return truncated(self._left, self._right, rank)

    def bytes(self, side: str) -> int:
        """Of the factors of users or items at their widest."""
        factor = self._left if side == "users" else self._right
        return len(factor) * factor.element_size() * _WIDEST * self.rank

    def state_dict(self) -> dict[str, Any]:
        """The count and the factors."""
        return {"count": self.count, "left": self._left, "right": self._right}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.count, self._left, self._right = state["count"], state["left"], state["right"]


def truncated(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best approximation of left·rightᵀ by factors with `rank` columns, without the product.

    Missing columns are zeros.
    """
    left_basis, left_part = torch.linalg.qr(left)
    right_basis, right_part = torch.linalg.qr(right)
    u, values, v = torch.linalg.svd((left_part @ right_part.T).double(), full_matrices=False)
    roots = values[:rank].sqrt().to(left)
    pairs = (left_basis, u.to(left)[:, :rank]), (right_basis, v.to(left)[:rank].T)
    factors = [basis @ (turn * roots) for basis, turn in pairs]
    missing = rank - len(roots)
    first, second = (torch.nn.functional.pad(factor, (0, missing)) for factor in factors)
    return first, second


class Summands:
    """Vectors of ids as sums of rows, one of each level; of a full table, there is one level."""

    def __init__(self, rows: NDArray[np.float32], codes: NDArray[np.int32] | None = None) -> None:
        """`rows` are levels × rows × dim; `codes` has the row of each id in each level."""
        self.rows = rows
        if codes is None:
            codes = np.arange(rows.shape[1], dtype=np.int32)[:, None]
        self.codes = codes

    def normal_equations(
        self, group: Grouped, targets: NDArray[np.float32], ids: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Σ x·xᵀ and Σ target·x of some ids, over their partners' vectors x, with a 1 at the end.

        An id beyond those of the group has no interactions.
        """
        dim = self.rows.shape[2] + 1
        matrices = np.zeros((len(ids), dim, dim), np.float32)
        right = np.zeros((len(ids), dim), np.float32)
        outer_sums(
            ids,
            group.starts,
            group.partners.numpy(),
            targets,
            self.codes,
            self.rows,
            matrices,
            right,
        )
        return torch.from_numpy(matrices), torch.from_numpy(right)


class GibbsSampling(Solver):
    """Bayesian probabilistic matrix factorisation, for full tables with biases.

    Rows w = (factors, bias) of a side have the prior N(m, Λ⁻¹), and (m, Λ) a Normal-Wishart
    prior that is fitted with them. A step draws, given all else, (m, Λ) of users, all users'
    rows, the same of items, and the noise variance σ². With the partners x = (factors, 1),

        w | … ~ N(P⁻¹·(Λ·m + Σ r·x/σ²), P⁻¹),    P = Λ + Σ x·xᵀ/σ².

    After `burn_in` steps, the model has the mean of all draws' predictions: its factors are
    those of the mean matrix (`LowRankMean`).
    """

    def __init__(
        self,
        model: Model,
        log: Interactions,
        how: GibbsConfig,
        seed: int = 0,
        communicator: Communicator = LOCAL,
    ) -> None:
        self._factors = _full_tables(model)
        self.model, self.how, self._seed, self._communicator = model, how, seed, communicator
        self._log, self._sweep = log, 0
        self.dim = model.user_rows.embedding_dim + 1
        self._rows = {
            side: FullEmbedding(table.num_embeddings, self.dim)
            for side, table in self._factors.items()
        }
        self._user_partition = partition_of_users(log, self._rows["users"], communicator)
        self._groups = {side: Grouped(log, side) for side in self._rows}
        self._size = max(communicator.all_reduce(float(len(log))), 1.0)
        self._mean, self._scale = self._moments_of_targets()
        self._noise = self._scale
        self._average = LowRankMean(self.dim - 1)
        self._biases = {side: torch.zeros(rows.num_rows) for side, rows in self._rows.items()}

    def _moments_of_targets(self) -> tuple[float, float]:
        """The mean and the variance of the targets of all ranks; 1 for equal targets."""
        total, target = self._communicator.all_reduce, self._log.target.astype(np.float64)
        mean = total(float(target.sum())) / self._size
        return mean, total(float(np.square(target - mean).sum())) / self._size or 1.0

    def start(self, seed: int) -> None:
        """Small random rows, without biases."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for rows in self._rows.values():
                rows.weight.normal_(0, _START, generator=generator)
                rows.weight[:, -1] = 0
        self._write()

    def bytes(self, side: str) -> int:
        """What the last draw and the means of a side take."""
        found: int = self._rows[side].weight.nbytes + self._biases[side].nbytes
        return found + self._average.bytes(side)

    @property
    def noise(self) -> float:
        """σ² of the last draw."""
        return self._noise

    @torch.no_grad()
    def step(self) -> float:
        """Draw all rows and their priors once; the squared error of the draw."""
        self._sweep += 1
        rng = np.random.default_rng([self._seed, self._sweep])
        self._draw("users", rng)
        loss = max(self._draw("items", rng), _LEAST_NOISE * self._scale * self._size)
        known = self.how.prior_rows  # and as many interactions for the noise
        self._noise = (loss + known * self._scale) / rng.chisquare(self._size + known)
        if self._sweep <= self.how.burn_in:
            self._average = LowRankMean(self.dim - 1)
        users, items = (rows.weight.detach() for rows in self._rows.values())
        self._average.add(users[:, :-1], items[:, :-1])
        for side, rows in self._rows.items():
            self._biases[side] += (rows.weight[:, -1] - self._biases[side]) / self._average.count
        return loss

    def meet(self) -> None:
        """The model takes the mean of the draws."""
        self._write()

    @torch.no_grad()
    def _write(self) -> None:
        known = self.model.biases
        assert known is not None  # noqa: S101  (`_full_tables` has checked)
        known.mean.fill_(self._mean)
        known.users.copy_(self._biases["users"])
        known.items.copy_(self._biases["items"])
        if self._average.count:
            factors = self._average.factors(self.dim - 1)
            for table, factor in zip(self._factors.values(), factors, strict=True):
                table.weight.copy_(factor)

    def evidence(self, side: str) -> Evidence:
        """None: full tables have no clusters."""
        raise CelrecError(f"Gibbs sampling is for full tables, and {side} have clusters")

    def loss(self, log: Interactions) -> float:
        """The mean squared error of the mean prediction."""
        return mean_squared_error(self.model, log)

    def state_dict(self) -> dict[str, Any]:
        """The last draw, σ², and the means."""
        return {
            "sweep": self._sweep,
            "noise": self._noise,
            "rows": {side: rows.weight.detach() for side, rows in self._rows.items()},
            "biases": dict(self._biases),
            "average": self._average.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sweep, self._noise = int(state["sweep"]), float(state["noise"])
        for side, weight in state["rows"].items():
            self._rows[side].weight.copy_(weight)
            self._biases[side] = state["biases"][side].clone()
        self._average.load_state_dict(state["average"])

    def _draw(self, side: str, rng: np.random.Generator) -> float:
        """New rows of one side; the squared error with them."""
        other = "items" if side == "users" else "users"
        table, partners = self._rows[side], self._rows[other].weight.detach()
        mean, precision = self._draw_prior(table.weight[:-1].detach().double().numpy(), rng)
        normals = rng.standard_normal((table.num_rows, self.dim))
        normals[-1] = 0  # an unseen id has the mean of the prior
        group = self._groups[side]
        biases = partners[:, -1].numpy()[group.partners.numpy()]
        targets = (self._log.target[group.order] - self._mean - biases).astype(np.float32)
        factors = Summands(partners[None, :, :-1].contiguous().numpy())
        partition = self._user_partition if side == "users" else WHOLE
        here = range(*partition.mine.indices(table.num_rows))
        size, explained = max(1, _BATCH // self.dim**2), 0.0
        for start in range(here.start, here.stop, size):
            rows = slice(start, min(start + size, here.stop))
            data, right = factors.normal_equations(group, targets, np.arange(start, rows.stop))
            if side == "items":
                data, right = (self._communicator.all_reduce(part) for part in (data, right))
            explained += draw_rows(
                data.numpy(),
                right.numpy(),
                precision,
                precision @ mean,
                1 / (self.how.strength * self._noise),
                normals[rows],
                table.weight[rows].numpy(),
            )
        table.weight.copy_(partition.all_gather(table.weight[partition.mine]))
        squares = float(np.square(targets, dtype=np.float64).sum())
        return self._communicator.all_reduce(squares) + partition.all_reduce(explained)

    def _draw_prior(
        self, rows: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A mean and a precision from the Normal-Wishart posterior given some rows.

        A priori the mean is 0, worth `prior_rows` rows, and the scale matrix is that of rows
        whose products have about the unit of the targets.
        """
        count, dim = rows.shape
        centre = rows.mean(0)
        apart = rows - centre
        strength = count + self.how.prior_rows
        pulled = count * self.how.prior_rows / strength * np.outer(centre, centre)
        scale = np.eye(dim) * self._scale**0.5 + apart.T @ apart + pulled
        precision = _wishart(np.linalg.inv(scale), dim + count, rng)
        root = np.linalg.cholesky(strength * precision)
        mean = count * centre / strength + np.linalg.solve(root.T, rng.standard_normal(dim))
        return mean, precision


def _wishart(
    scale: NDArray[np.float64], freedom: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """A draw from the Wishart distribution, by the Bartlett decomposition."""
    dim = len(scale)
    lower = np.tril(rng.standard_normal((dim, dim)), -1)
    lower[np.diag_indices(dim)] = np.sqrt(rng.chisquare(freedom - np.arange(dim)))
    root = np.linalg.cholesky((scale + scale.T) / 2) @ lower
    drawn: NDArray[np.float64] = root @ root.T
    return drawn


def _full_tables(model: Model) -> dict[str, SharedRows]:
    """The factors of users and items, which must be full tables beside biases."""
    tables = model.row_tables
    for side, table in tables.items():
        if not isinstance(table, FullEmbedding) or model.biases is None:
            raise CelrecError(
                f"Gibbs sampling needs a full table with biases, not {type(table).__name__} of "
                f"{side}; take model 'mf' and embedding 'full'"
            )
    return tables
