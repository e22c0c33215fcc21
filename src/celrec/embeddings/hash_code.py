"""HashGNN: ids with the same binary code of a graph neural network share a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from numpy.typing import NDArray
from torch import Tensor, nn

from celrec.data.histories import Grouped
from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import Memory, SharedRows, Traits
from celrec.embeddings.id_rows import narrowest_dtype
from celrec.errors import CelrecError
from celrec.runtime.jit import Floats, Ints, compiled

BLOCK = 1 << 22  # distances computed at once


class HashCodeEmbedding(SharedRows):
    """One row for each of the `rows` most frequent codes; other codes use the nearest of these.

    `set_codes` takes the codes, from a network that was trained before, such as HashGNN.
    Distances are Hamming distances; ties go to the more frequent code. An unseen id has the row
    of the most frequent code. Before `set_codes`, the row of an id is id mod rows.

    >>> table = HashCodeEmbedding(5, 2, rows=2)
    >>> bits = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]]).bool()
    >>> table.set_codes(bits, weights=torch.tensor([9.0, 5.0, 1.0, 1.0, 1.0]))
    >>> table.row_of(torch.arange(5)).tolist()
    [0, 1, 0, 1, 0]
    >>> table.memory()
    Memory(table=16, index=6)
    """

    traits = Traits(low_time=False, low_memory=False, incremental=False)  # because of the network
    row: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)
        row = torch.arange(num_embeddings + 1, device=device) % rows
        row[-1] = 0
        self.register_buffer("row", row.to(narrowest_dtype(rows)))

    @torch.no_grad()
    def set_codes(self, bits: Tensor, weights: Tensor) -> None:
        """Assign ids to rows by their codes; rows are ordered by the frequency of the codes.

        Args:
            bits: The code of each id, (ids, code length), as booleans.
            weights: The frequency of each id.

        """
        if bits.dtype != torch.bool or bits.shape[0] != self.num_embeddings or bits.ndim != 2:
            raise CelrecError(
                f"bits must have a row of booleans for each of {self.num_embeddings:,} ids, "
                f"not {bits.dtype} of shape {tuple(bits.shape)}"
            )
        codes, label = torch.unique(bits, dim=0, return_inverse=True)
        used = torch.zeros(len(codes), dtype=torch.float64)
        used.index_add_(0, label, weights.double())
        order = used.argsort(descending=True, stable=True)
        kept = codes[order[: len(self.weight)]].float() * 2 - 1
        place = torch.empty(len(codes), dtype=torch.int64)
        place[order[: len(kept)]] = torch.arange(len(kept))
        for others in torch.split(order[len(kept) :], max(1, BLOCK // len(kept))):
            # For codes of ±1 the largest inner product is the smallest Hamming distance.
            place[others] = ((codes[others].float() * 2 - 1) @ kept.T).argmax(1)
        self.row[:-1] = place[label].to(self.row)
        self.row[-1] = 0

    @property
    def num_rows(self) -> int:
        """All rows, also those that no code uses."""
        return len(self.weight)

    def row_of(self, ids: Tensor) -> Tensor:
        return self.row[self._place(ids)].long()

    def memory(self, *, training: bool = False) -> Memory:
        """The rows, and the row number of every id; the network is not needed any more."""
        return Memory(self.weight.nbytes, self.row.nbytes)


_BATCH = 8192
_OTHER = {"users": "items", "items": "users"}


@dataclass(frozen=True, slots=True)
class HashGnn:
    """Hyperparameters of HashGNN.

    Every user and item has a vector of length `dim`. One layer combines it with the mean of its
    neighbours' vectors, weighted by how far each rating is above the mean. A second layer gives
    one value between −1 and 1 per bit. Adam minimises two losses: cross-entropy for ratings
    above the user's mean, and a ranking loss for pairs of such an item and another item of the
    user. Values are replaced by their signs with a probability that rises from 0 to 1, with
    straight-through gradients.
    """

    dim: int = 32
    spare_bits: int = 3
    """Bits in addition to ⌈log2 rows⌉."""
    steps: int = 300
    learning_rate: float = 0.01
    ranking: float = 0.5
    """The weight of the ranking loss."""


class StraightThrough(torch.autograd.Function):
    """The sign, 1 for 0, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        """±1."""
        del ctx
        return torch.where(values >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: object, slope: Tensor) -> Tensor:
        """The gradient, unchanged."""
        del ctx
        return slope


class Neighbours:
    """The neighbours of the ids of one table in the interaction graph.

    `shares` are the deviations of the ratings from the mean, divided by the number of neighbours.
    """

    def __init__(self, log: Interactions, side: str) -> None:
        grouped = Grouped(log, side)
        self.starts, self.partners = grouped.starts, grouped.partners.numpy()
        apart = log.target - (log.target.mean(dtype=np.float64) if len(log) else 0.0)
        scale = float(np.abs(apart).mean()) if apart.any() else 1.0
        each = np.repeat(1.0 / np.maximum(grouped.counts, 1), grouped.counts)
        self.shares: NDArray[np.float32] = (apart[grouped.order] / scale * each).astype(np.float32)


class NeighbourMeans(torch.autograd.Function):
    """The weighted means of the neighbours' vectors of some ids."""

    @staticmethod
    def forward(ctx: Any, neighbours: Neighbours, ids: Tensor, vectors: Tensor) -> Tensor:
        ctx.neighbours, ctx.ids, ctx.size = neighbours, ids, len(vectors)
        means = vectors.new_empty(len(ids), vectors.shape[1])
        gather_neighbours(
            *(neighbours.starts, neighbours.partners, neighbours.shares),
            *(ids.numpy(), vectors.detach().numpy(), means.numpy()),
        )
        return means

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, None, Tensor]:
        slopes = slope.new_zeros(ctx.size, slope.shape[1])
        scatter_to_neighbours(
            *(ctx.neighbours.starts, ctx.neighbours.partners, ctx.neighbours.shares),
            *(ctx.ids.numpy(), slope.contiguous().numpy(), slopes.numpy()),
        )
        return None, None, slopes


class Encoder(nn.Module):
    """Maps ids of one table to values between −1 and 1."""

    def __init__(self, ids: int, dim: int, bits: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(ids, dim) * 0.1)
        self.mix = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, bits)

    def forward(self, ids: Tensor, neighbours: Tensor) -> Tensor:
        own = F.embedding(ids, self.vector)
        mixed = F.leaky_relu(self.mix(torch.cat([own, neighbours], -1)))
        numbers: Tensor = self.out(mixed).tanh()
        return numbers


def hash_codes(
    log: Interactions, side: str, rows: int, seed: int, how: HashGnn | None = None
) -> tuple[Tensor, int]:
    """The code of each id of one table, (ids, bits), and the bytes of the network."""
    how = how or HashGnn()
    bits = max(1, math.ceil(math.log2(max(rows, 2)))) + how.spare_bits
    log = log.seen()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sides = {"users": log.num_users, "items": log.num_items}
        encoders = {name: Encoder(ids, how.dim, bits) for name, ids in sides.items()}
        graph = {name: Neighbours(log, name) for name in sides}
        _train(encoders, graph, log, side, how, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            numbers = encode(encoders, graph, {side: torch.arange(sides[side])})[side]
    nbytes = sum(p.nbytes for encoder in encoders.values() for p in encoder.parameters())
    return numbers >= 0, nbytes


def encode(
    encoders: dict[str, Encoder], graph: dict[str, Neighbours], ids: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The code of each id, as numbers before the signs are taken."""
    found = {}
    for side, wanted in ids.items():
        vectors = encoders[_OTHER[side]].vector
        means: Tensor = NeighbourMeans.apply(graph[side], wanted, vectors)  # type: ignore[no-untyped-call]
        found[side] = encoders[side](wanted, means)
    return found


def _train(
    encoders: dict[str, Encoder],
    graph: dict[str, Neighbours],
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
    # The interactions sorted by user, with liked ones last.
    order = torch.from_numpy(np.lexsort((liked.numpy(), log.user)))
    counts = torch.bincount(user)
    begin = counts.cumsum(0) - counts
    disliked = torch.bincount(user, weights=(~liked).double()).long()
    level = nn.Parameter(torch.zeros(()))
    weights = [p for encoder in encoders.values() for p in encoder.parameters()]
    optimizer = torch.optim.Adam([*weights, level], lr=how.learning_rate, fused=True)
    for step in range(how.steps):
        binary = torch.rand(len(encoders[side].vector), 1, generator=generator)
        batch = torch.randint(len(log), (min(_BATCH, len(log)),), generator=generator)
        u, i = user[batch], item[batch]
        drawn = (torch.rand(len(u), generator=generator) * disliked[u]).long()
        worse = item[order[begin[u] + drawn.clamp(max=counts[u] - 1)]]
        # Encode only the ids of the batch.
        batch_ids = {"users": torch.unique(u), "items": torch.unique(torch.cat([i, worse]))}
        numbers = encode(encoders, graph, batch_ids)
        guided = numbers[side]
        signs: Tensor = StraightThrough.apply(guided)  # type: ignore[no-untyped-call]
        chosen = binary[batch_ids[side]] < (step + 1) / how.steps
        numbers[side] = torch.where(chosen, signs, guided)
        own = numbers["users"][torch.searchsorted(batch_ids["users"], u)]
        better, other = (
            numbers["items"][torch.searchsorted(batch_ids["items"], ids)] for ids in (i, worse)
        )
        score = (own * better).sum(-1)
        target = liked[batch].float()
        loss = F.binary_cross_entropy_with_logits(score + level, target)
        comparable = liked[batch] & (disliked[u] > 0)
        gap = score - (own * other).sum(-1)
        ranking = (F.softplus(-gap) * comparable).sum() / comparable.sum().clamp(min=1)
        total = (1 - how.ranking) * loss + how.ranking * ranking
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@compiled
def gather_neighbours(
    starts: Ints, partners: Ints, shares: Floats, ids: Ints, vectors: Floats, sums: Floats
) -> None:
    """Σ share·vector over the neighbours of each of some ids."""
    dim = vectors.shape[1]
    total = np.empty(dim, np.float32)  # not aliased with `vectors`, so the loop is vectorised
    for n in range(len(ids)):
        total[:] = 0
        for p in range(starts[ids[n]], starts[ids[n] + 1]):
            vector, share = vectors[partners[p]], shares[p]
            for d in range(dim):
                total[d] += share * vector[d]
        sums[n] = total


@compiled
def scatter_to_neighbours(
    starts: Ints, partners: Ints, shares: Floats, ids: Ints, slopes: Floats, sums: Floats
) -> None:
    """The backward pass: add share·slope of each id to the sums of its neighbours."""
    dim = slopes.shape[1]
    slope = np.empty(dim, np.float32)
    for n in range(len(ids)):
        slope[:] = slopes[n]
        for p in range(starts[ids[n]], starts[ids[n] + 1]):
            total, share = sums[partners[p]], shares[p]
            for d in range(dim):
                total[d] += share * slope[d]
