"""HashGNN: binary codes of ids from a network on the graph of who rated what."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor, nn

from celrec.data.interactions import Interactions

_BATCH = 8192


@dataclass(frozen=True, slots=True)
class HashGnn:
    """How codes are learned.

    Every user and item has a vector of `dim` numbers. One layer mixes it with the mean of
    its neighbours', each weighted by how far the rating is above the mean, and a second
    one gives as many numbers between −1 and 1 as there are bits. Trained for two things
    at once, by Adam: that a rating is above the user's mean (cross-entropy), and that
    such an item is ahead of another of the user's that is not (ranking). Of each sample,
    the signs take the place of the numbers with a chance that rises from 0 to 1; their
    gradient is passed straight through.
    """

    dim: int = 32
    spare_bits: int = 3
    """More than the number of rows calls for."""
    steps: int = 300
    learning_rate: float = 0.01
    ranking: float = 0.5
    """The share of the ranking loss."""


class StraightThrough(torch.autograd.Function):
    """The sign, 1 for 0, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        """±1."""
        del ctx
        return torch.where(values >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: object, slope: Tensor) -> Tensor:
        """As it comes."""
        del ctx
        return slope


class _NeighbourMeans(torch.autograd.Function):
    """A·vectors for a sparse A that is given with its transpose, for the way back."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, vectors: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ vectors

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transposed @ slope


class _Encoder(nn.Module):
    """Ids of one side to numbers between −1 and 1."""

    def __init__(self, ids: int, dim: int, bits: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(ids, dim) * 0.1)
        self.mix = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, bits)

    def forward(self, neighbours: Tensor) -> Tensor:
        mixed = F.leaky_relu(self.mix(torch.cat([self.vector, neighbours], -1)))
        numbers: Tensor = self.out(mixed).tanh()
        return numbers


def hash_codes(
    log: Interactions, side: str, rows: int, seed: int, how: HashGnn | None = None
) -> tuple[Tensor, int]:
    """A line of bits for each id of one side, and the bytes that the network held."""
    how = how or HashGnn()
    bits = max(1, math.ceil(math.log2(max(rows, 2)))) + how.spare_bits
    log = log.seen()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sides = {"users": log.num_users, "items": log.num_items}
        encoders = {name: _Encoder(ids, how.dim, bits) for name, ids in sides.items()}
        graph = _graph(log)
        _train(encoders, graph, log, side, how, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            numbers = _encode(encoders, graph)[side]
    held = sum(p.nbytes for encoder in encoders.values() for p in encoder.parameters())
    return numbers >= 0, held


_Graph: TypeAlias = dict[str, tuple[Tensor, Tensor]]


def _graph(log: Interactions) -> _Graph:
    """How far ratings are above the mean, over the number of neighbours, for both sides.

    Users × items and items × users, each with its transpose.
    """
    apart = log.target - (log.target.mean(dtype=np.float64) if len(log) else 0.0)
    scale = float(np.abs(apart).mean()) if apart.any() else 1.0
    values = torch.from_numpy((apart / scale).astype(np.float32))
    user, item = (torch.from_numpy(ids.astype(np.int64)) for ids in (log.user, log.item))
    size = (log.num_users, log.num_items)
    places = {"users": torch.stack([user, item]), "items": torch.stack([item, user])}
    counts = {"users": log.user_counts, "items": log.item_counts}
    graph = {}
    for side, place in places.items():
        share = torch.from_numpy(1.0 / np.maximum(counts[side], 1)).float()[place[0]]
        shape = size if side == "users" else size[::-1]
        matrix = torch.sparse_coo_tensor(place, values * share, shape, check_invariants=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            graph[side] = matrix.to_sparse_csr(), matrix.T.to_sparse_csr()
    return graph


def _encode(encoders: dict[str, _Encoder], graph: _Graph) -> dict[str, Tensor]:
    def neighbours(side: str, other: str) -> Tensor:
        vectors = encoders[other].vector
        means: Tensor = _NeighbourMeans.apply(*graph[side], vectors)  # type: ignore[no-untyped-call]
        return means

    return {
        "users": encoders["users"](neighbours("users", "items")),
        "items": encoders["items"](neighbours("items", "users")),
    }


def _train(
    encoders: dict[str, _Encoder],
    graph: _Graph,
    log: Interactions,
    side: str,
    how: HashGnn,
    generator: torch.Generator,
) -> None:
    if not len(log):
        return
    user, item = (torch.from_numpy(ids.astype(np.int64)) for ids in (log.user, log.item))
    means = np.bincount(log.user, log.target) / np.maximum(np.bincount(log.user), 1)
    liked = torch.from_numpy(log.target > means[log.user])
    # The interactions of each user side by side, those that were liked last.
    order = torch.from_numpy(np.lexsort((liked.numpy(), log.user)))
    counts = torch.bincount(user)
    begin = counts.cumsum(0) - counts
    disliked = torch.bincount(user, weights=(~liked).double()).long()
    level = nn.Parameter(torch.zeros(()))
    weights = [p for encoder in encoders.values() for p in encoder.parameters()]
    optimizer = torch.optim.Adam([*weights, level], lr=how.learning_rate)
    for step in range(how.steps):
        numbers = _encode(encoders, graph)
        guided = numbers[side]
        signs: Tensor = StraightThrough.apply(guided)  # type: ignore[no-untyped-call]
        binary = torch.rand(len(guided), 1, generator=generator) < (step + 1) / how.steps
        numbers[side] = torch.where(binary, signs, guided)
        batch = torch.randint(len(log), (min(_BATCH, len(log)),), generator=generator)
        u, i = user[batch], item[batch]
        own = numbers["users"][u]
        score = (own * numbers["items"][i]).sum(-1)
        target = liked[batch].float()
        loss = F.binary_cross_entropy_with_logits(score + level, target)
        comparable = liked[batch] & (disliked[u] > 0)
        drawn = (torch.rand(len(u), generator=generator) * disliked[u]).long()
        worse = item[order[begin[u] + drawn.clamp(max=counts[u] - 1)]]
        gap = score - (own * numbers["items"][worse]).sum(-1)
        ranking = (F.softplus(-gap) * comparable).sum() / comparable.sum().clamp(min=1)
        total = (1 - how.ranking) * loss + how.ranking * ranking
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
