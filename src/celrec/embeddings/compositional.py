"""Compositional embeddings: one row from each of a few small tables, combined."""

from __future__ import annotations

import math
from itertools import count

import torch
from torch import Tensor, nn

from celrec.embeddings.embedding import Embedding, Memory, Traits
from celrec.embeddings.hashing import PermutedDigits, balanced
from celrec.errors import CelrecError

_COMBINE = ("multiply", "add", "concatenate")


class CompositionalEmbedding(Embedding):
    """Compositional partitions: v(id) = table_1[digit 1] ∘ … ∘ table_k[digit k].

    ∘ is a product, a sum or a concatenation (where each table has 1/k of the columns). The
    digits are those of the shuffled id in a mixed-radix system. The product of the radices is
    above `num_embeddings`, so no two ids have the same rows. With two tables the digits are
    the quotient and the remainder of a division (the QR trick).

    k is the smallest number of tables, from 2, that fits in `rows`, with tables as equal and as
    large as possible. If none fits, the number of rows is raised until one does; about
    3·log3 `num_embeddings` are enough.

    Unseen ids wrap around, modulo the product of the radices less 1.

    Shi et al., Compositional Embeddings Using Complementary Partitions, KDD 2020.

    >>> CompositionalEmbedding(3952, 64, rows=198).radices
    [99, 99]
    >>> table = CompositionalEmbedding(3952, 64, rows=50)
    >>> table.radices
    [17, 17, 16]
    >>> table.memory()
    Memory(table=12800, index=0)
    """

    traits = Traits(low_time=True, low_memory=True, incremental=False)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rows: int,
        combine: str = "multiply",
        seed: int = 0,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, rows)
        if combine not in _COMBINE:
            raise CelrecError(f"combine must be one of {', '.join(_COMBINE)}, not {combine!r}")
        if combine == "concatenate" and embedding_dim == 1:
            raise CelrecError("embedding_dim must be 2 or more to concatenate, not 1")
        self.combine, self.seed = combine, seed
        if combine == "concatenate":
            self.radices = _of_columns(num_embeddings, embedding_dim, rows)
            columns = balanced(embedding_dim, len(self.radices))
        else:
            self.radices = _of_rows(num_embeddings, rows)
            columns = [embedding_dim] * len(self.radices)
        self.digits = PermutedDigits(self.radices, seed)
        self.tables = nn.ParameterList(
            nn.Parameter(torch.empty(radix, width, device=device, dtype=dtype))
            for radix, width in zip(self.radices, columns, strict=True)
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise so that vectors have a norm of about 1.

        For products, the first table is from N(0, 1/dim) and the factors of the others from
        U(½, 1½) / √(13/12), whose mean square is 1. Factors around 0 would give products and
        gradients near 0, above all with a non-negativity constraint.
        """
        variance = 1 / self.embedding_dim
        if self.combine == "add":
            variance /= len(self.tables)
        for number, table in enumerate(self.tables):
            if self.combine == "multiply" and number:
                nn.init.uniform_(table, 0.5, 1.5).div_(math.sqrt(13 / 12))
            else:
                nn.init.normal_(table, std=math.sqrt(variance))

    def vectors(self, ids: Tensor) -> Tensor:
        parts = [
            table.index_select(0, digit.reshape(-1))
            for table, digit in zip(self.tables, self.digits(ids), strict=True)
        ]
        if self.combine == "concatenate":
            flat = torch.cat(parts, -1)
        else:
            flat = parts[0]
            for part in parts[1:]:
                flat = flat + part if self.combine == "add" else flat * part
        return flat.view(*ids.shape, self.embedding_dim)

    def memory(self, *, training: bool = False) -> Memory:
        return Memory(sum(table.nbytes for table in self.tables), 0)

    def extra_repr(self) -> str:
        tables = "+".join(str(radix) for radix in self.radices)
        return f"{super().extra_repr()}, tables={tables}, combine={self.combine}"


def _of_rows(num_embeddings: int, rows: int) -> list[int]:
    """Radices whose sum is `rows`, or the smallest possible larger sum."""
    return next(
        radices
        for total in count(rows)
        for parts in range(2, total + 1)
        if math.prod(radices := balanced(total, parts)) > num_embeddings
    )


def _of_columns(num_embeddings: int, embedding_dim: int, rows: int) -> list[int]:
    """Equal radices for concatenated tables: `rows`, or the smallest possible larger number."""
    return next(
        [radix] * parts
        for radix in count(rows)
        for parts in range(2, embedding_dim + 1)
        if radix**parts > num_embeddings
    )
