"""Candidates for a budget of bytes: methods and sizes of tables, made of one full fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from celrec.config.offline import CompressionConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.four_bit import FourBitEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.kmeans import lloyd, nearest
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.packed import PackedLevels
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.models.dot_product import BiasedDotProduct
from celrec.offline.compression import Compression
from celrec.recommender.model import Model

ROUNDED = {"int8": 8, "int4": 4, "full": 32}
"""Methods with a row for each id, and the bits of its numbers."""
_ROUNDS = 2  # of refinement; more lower the error by 0.0001 on validation data of MovieLens-1M


class Levels(NamedTuple):
    """The rows of each level of a table, and how many levels or parts there are."""

    rows: int
    number: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method, and the sizes of the tables of users and items.

    >>> two = Levels(rows=16, number=2)
    >>> Candidate("cel", rank=8, users=two, items=two).size(1000, 500)
    2110
    """

    method: str
    rank: int
    users: Levels | None = None
    """None for methods with a row for each id."""
    items: Levels | None = None
    bias_rows: int = 0
    """How many values the biases of ids have, with a code of their own; 0: biases are a column of
    the rows. Of methods with a row for each id, any other number means a bias of four bytes."""
    codes: str = "joint"
    """As in `CompressionConfig`."""

    def size(self, users: int, items: int) -> int:
        """The bytes of both tables: rows, codes, steps and biases."""
        return self._bytes(users, self.users) + self._bytes(items, self.items)

    @property
    def text(self) -> str:
        """The sizes in words.

        >>> Candidate("cel", 8, Levels(16, 2), Levels(32, 3), bias_rows=16).text
        'rank 8; users 2 × 16 rows, items 3 × 32; biases of 16 values'
        """
        if self.users is None or self.items is None:
            return f"rank {self.rank}; biases {'apart' if self.bias_rows else 'in the rows'}"
        users, items = (f"{one.number} × {one.rows}" for one in (self.users, self.items))
        biases = f"of {self.bias_rows} values" if self.bias_rows else "in the rows"
        return f"rank {self.rank}; users {users} rows, items {items}; biases {biases}"

    def _bytes(self, ids: int, levels: Levels | None) -> int:
        dim, apart = self.rank + (not self.bias_rows), bool(self.bias_rows)
        if levels is None:
            row = {8: dim + 4, 4: -(-dim // 2) + 4, 32: 4 * dim}[ROUNDED[self.method]]
            return (ids + 1) * (row + 4 * apart)
        width = dim // levels.number if self.method == "pq" else dim
        bits = levels.number * (levels.rows - 1).bit_length()
        bits += (self.bias_rows - 1).bit_length() * apart
        rows = levels.rows * levels.number * width + self.bias_rows
        steps = 4 * (levels.number + apart)
        return rows + steps + -(-(ids + 1) * bits // 8) + 8


def candidate_of(fields: dict[str, Any]) -> Candidate:
    """A candidate from its fields, as JSON has them.

    >>> candidate_of({"method": "int4", "rank": 8, "users": None, "items": None}).text
    'rank 8; biases in the rows'
    """
    sides = {side: fields[side] and Levels(*fields[side]) for side in ("users", "items")}
    return Candidate(**{**fields, **sides})


@torch.no_grad()
def compressed(full: Model, log: Interactions, candidate: Candidate, seed: int = 0) -> Model:
    """A packed model with about the predictions of a full fit to `log`."""
    users = _table(log.num_users, candidate, candidate.users)
    items = _table(log.num_items, candidate, candidate.items)
    if candidate.bias_rows:
        users, items = BiasedEmbedding(users), BiasedEmbedding(items)
    model = Model(users, items, BiasedDotProduct())
    how = CompressionConfig(rounds=_ROUNDS, codes=candidate.codes)
    Compression(model, full, log, how, seed).run()
    counts = {"users": log.user_counts, "items": log.item_counts}

    def packed(side: str, table: Embedding) -> Embedding:
        weights = torch.from_numpy(counts[side] + how.prior)
        return _packed(table, candidate, weights)

    model.replace_tables(packed)
    return model


def _table(ids: int, candidate: Candidate, levels: Levels | None) -> Embedding:
    dim = candidate.rank + (not candidate.bias_rows)
    if levels is None:
        return FullEmbedding(ids, dim)
    if levels.number == 1:
        return ClusteredEmbedding(ids, dim, max_clusters=levels.rows)
    parts, number = (levels.number, 1) if candidate.method == "pq" else (1, levels.number)
    return LevelledEmbedding(ids, dim, max_clusters=levels.rows, levels=number, parts=parts)


def _packed(table: Embedding, candidate: Candidate, weights: Tensor) -> Embedding:
    if candidate.method in ROUNDED:
        bits = ROUNDED[candidate.method]
        if isinstance(table, BiasedEmbedding):
            table.rows = _rounded(table.rows, bits)
            return table
        return _rounded(table, bits)
    if not isinstance(table, BiasedEmbedding):
        return PackedLevels.of(table)
    inner, dim = PackedLevels.of(table.rows, bits=32), table.rows.embedding_dim
    codes, values = _bias_codes(table.bias, weights, candidate.bias_rows)
    ids = torch.arange(-1, table.num_embeddings).roll(-1)
    return PackedLevels.pack(
        torch.cat([inner.codes(ids), codes[:, None]], 1),
        [*inner.level_rows(), values[:, None]],
        [*inner.columns, [dim, dim + 1]],
    )


def _rounded(table: Embedding, bits: int) -> Embedding:
    if bits == 4:
        return FourBitEmbedding.of(table)
    if bits == 8:
        assert isinstance(table, FullEmbedding)  # noqa: S101  (there are no levels)
        return QuantisedEmbedding(table, packed=True)
    return table


def _bias_codes(biases: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The code of each bias, and the values of codes: k-means of numbers, by quantiles first."""
    points = biases[:-1, None]
    places = torch.linspace(0, 1, count + 2).to(points)[1:-1]
    values = lloyd(points, torch.quantile(points, places, dim=0), weights=weights)
    codes, _ = nearest(biases[:, None], values)
    return codes, values[:, 0]
