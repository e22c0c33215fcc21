"""Stateless hashes and permutations of ids, and the hashing trick."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Memory, SharedRows, Traits

_MASK = 0x7FFFFFFF
_GOLDEN = 0x9E3779B1


def hash_ids(ids: Tensor, seed: int) -> Tensor:
    """A 31-bit hash of each id for a seed, by multiplications and shifts.

    >>> import torch
    >>> int(hash_ids(torch.tensor(3), 0)) == int(hash_ids(torch.tensor(3), 1))
    False
    """
    offset = _GOLDEN * (seed + 1) & _MASK  # also for seeds beyond 63 bits
    bits = ((ids.long() & _MASK) + offset) & _MASK
    for multiplier in (0x45D9F3B, 0x2C1B3C6D):
        bits = ((bits ^ (bits >> 16)) * multiplier) & _MASK
    return bits ^ (bits >> 16)


class PermutedDigits:
    """Shuffled ids in a mixed-radix system: digit i is below `radices[i]`, tuples are unique.

    Dense ids are ordered by first appearance, so they are shuffled first, by two steps of
    x → (a·x + b) mod m with gcd(a, m) = 1. Two, because a·x must fit in 63 bits, so a is small
    if m is large. m is the product of the radices less 1; it has no factor in common with a
    radix, which would fix some digits for every seed. Ids outside 0 … m − 1 wrap around,
    modulo m.

    >>> digits = PermutedDigits([3, 2], seed=0)
    >>> len({tuple(int(d) for d in digits(torch.tensor(one))) for one in range(5)})
    5
    """

    def __init__(self, radices: Sequence[int], seed: int) -> None:
        self.radices = list(radices)
        self.modulus = math.prod(radices) - 1
        draws = hash_ids(torch.arange(4, device="cpu"), seed).tolist()
        largest = max(1, min(self.modulus - 1, 2**62 // self.modulus))
        self.steps: list[tuple[int, int]] = []
        for factor, offset in zip(draws[:2], draws[2:], strict=True):
            factor = 1 + factor % largest
            while math.gcd(factor, self.modulus) > 1:
                factor -= 1
            self.steps.append((factor, offset % self.modulus))

    def __call__(self, ids: Tensor) -> list[Tensor]:
        """The digits of each id, the lowest first; each tensor has the shape of `ids`."""
        numbers = ids % self.modulus
        for factor, offset in self.steps:
            numbers = (numbers * factor + offset) % self.modulus
        digits = []
        for radix in self.radices:
            digits.append(numbers % radix)
            numbers = torch.div(numbers, radix, rounding_mode="floor")
        return digits


def balanced(total: int, parts: int) -> list[int]:
    """Split `total` into `parts` integers that differ by at most 1, which maximises the product.

    >>> balanced(11, 3)
    [4, 4, 3]
    """
    return [total // parts + (part < total % parts) for part in range(parts)]


class ModuloEmbedding(SharedRows):
    """Ids share rows at random: the row of an id is hash(id) mod rows.

    The hash is seeded and mixes the bits, since dense ids are ordered by first appearance and
    are not random themselves. Only the rows are stored. An unseen id is hashed like any other.

    >>> table = ModuloEmbedding(1000, 4, rows=10, seed=3)
    >>> table.memory()
    Memory(table=160, index=0)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=True)

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
        self.weight = nn.Parameter(torch.empty(rows, embedding_dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=embedding_dim**-0.5)

    @property
    def num_rows(self) -> int:
        return len(self.weight)

    def row_of(self, ids: Tensor) -> Tensor:
        return hash_ids(ids, self.seed) % len(self.weight)

    def grow(self, num_embeddings: int) -> None:
        """Raise the number of ids; new ids are hashed like all others."""
        self._grow_ids(num_embeddings)

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(self.weight.nbytes, 0)
