"""TT-Rec: a table in tensor-train format, with three cores."""

from __future__ import annotations

import math
from itertools import count

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.hashing import PermutedDigits, balanced


class TensorTrainEmbedding(Embedding):
    """Tensor train: a vector is a product of small matrices, one for each digit of the id.

        v(id)[j1, j2, j3] = G1[i1][j1, :] · G2[i2][:, j2, :] · G3[i3][:, j3]

    (i1, i2, i3) are the digits of the shuffled id for radices n1, n2, n3, which are as equal and
    small as possible with a product above `num_embeddings`. The dimension is r1·r2·r3 with the
    smallest sum of factors. The smallest radix and factor belong to the middle core, which is the
    largest. The cores have n1·r1·ρ + n2·ρ·r2·ρ + n3·ρ·r3 parameters; the rank ρ is the largest,
    from 1, for which that is at most `rows` × `embedding_dim`.

    Unseen ids wrap around, modulo n1·n2·n3 − 1.

    Yin et al., TT-Rec: Tensor Train Compression for Deep Learning Recommendation Models,
    MLSys 2021.

    >>> table = TensorTrainEmbedding(3952, 64, rows=40)
    >>> table.radices, table.factors, table.rank
    ([16, 16, 16], [4, 4, 4], 5)
    >>> table.memory()
    Memory(table=8960, index=0)
    """

    # A lookup multiplies matrices of ρ² values, and ρ grows with the requested rows.
    traits = Traits(low_time=False, low_memory=True, incremental=False)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        seed: int = 0,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        self.seed = seed
        self.radices = _middle_smallest(
            next(
                radices
                for total in count(3)
                if math.prod(radices := balanced(total, 3)) > num_embeddings
            )
        )
        self.factors = _middle_smallest(_factors(embedding_dim))
        n1, n2, n3 = (n * r for n, r in zip(self.radices, self.factors, strict=True))
        self.rank = 1
        while (n1 + n3) * (self.rank + 1) + n2 * (self.rank + 1) ** 2 <= rows * embedding_dim:
            self.rank += 1
        self.digits = PermutedDigits(self.radices, seed)
        n1, n2, n3 = self.radices
        r1, r2, r3 = self.factors
        shapes = [(n1, r1, self.rank), (n2, self.rank, r2 * self.rank), (n3, self.rank, r3)]
        self.cores = nn.ParameterList(
            nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) for shape in shapes
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise cores from N(0, s²) with ρ²·s⁶ = 1/dim: values are sums of ρ² products."""
        for core in self.cores:
            nn.init.normal_(core, std=(self.embedding_dim * self.rank**2) ** (-1 / 6))

    def vectors(self, ids: Tensor) -> Tensor:
        r1, r2, _ = self.factors
        first, second, third = (
            core.index_select(0, digit.reshape(-1))
            for core, digit in zip(self.cores, self.digits(ids), strict=True)
        )
        product = torch.bmm(first, second).view(-1, r1 * r2, self.rank)
        return torch.bmm(product, third).view(*ids.shape, self.embedding_dim)

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(sum(core.nbytes for core in self.cores), 0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"


def _middle_smallest(numbers: list[int]) -> list[int]:
    smallest, middle, largest = sorted(numbers)
    return [middle, smallest, largest]


def _factors(number: int) -> list[int]:
    """Three integers with this product and the smallest sum."""
    return min(
        (
            [first, second, number // first // second]
            for first in range(1, number + 1)
            if number % first == 0
            for second in range(1, number // first + 1)
            if number // first % second == 0
        ),
        key=sum,
    )
