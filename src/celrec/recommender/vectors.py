"""Vectors of a batch or a table, each computed once where several samples need it."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor

from celrec.data.id_map import UNSEEN
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.models.interaction import History
from celrec.recommender.batch import Batch
from celrec.runtime.jit import Floats, Ints, compiled_parallel


def all_vectors(items: Embedding, batch: Batch) -> Tensor | None:
    """The vectors of an unseen item and of all items; None if lookups are cheaper.

    They pay if vectors combine several rows and a batch has more places than there are items.
    """
    ids, number = batch.history, items.num_embeddings
    if (
        ids is None
        or isinstance(items, SharedRows)
        or torch.compiler.is_compiling()
        or ids.numel() <= number
        or max(int(ids.max()), int(batch.item.max())) >= number  # methods may tell them apart
    ):
        return None
    vectors: Tensor = items(torch.arange(UNSEEN, number, device=ids.device))
    return vectors


def chosen(vectors: Tensor, ids: Tensor) -> Tensor:
    """The vectors of `ids`, from those that `all_vectors` gives."""
    flat = vectors.index_select(0, ids.reshape(-1) - UNSEEN)
    return flat.view(*ids.shape, vectors.shape[-1])


def history_of(
    items: Embedding, batch: Batch, everyone: Tensor | None, *, with_targets: bool
) -> History:
    """The history of a batch, given as rows where vectors are rows of a table.

    `everyone` is the result of `all_vectors`; with `with_targets` the targets are rows too.
    """
    assert batch.history is not None  # noqa: S101  (the caller has checked)
    ids, filled = batch.history, batch.history >= 0
    if everyone is not None:
        return History(None, filled, everyone, ids - UNSEEN)
    if isinstance(items, SharedRows) and items.plain and not torch.compiler.is_compiling():
        target = items.row_of(batch.item) if with_targets else None
        return History(None, filled, items.weight, items.row_of(ids), target)
    return History(items(ids), filled)


def add_noise(
    vectors: Tensor,
    rows: Tensor,
    deviations: Tensor,
    normal: Callable[[torch.Size], Tensor],
) -> Tensor:
    """Vectors plus L·z, with the matrix L of each one's row and z from N(0, I)."""
    drawn = normal(torch.Size((*rows.shape, deviations.shape[-1])))
    noise = torch.empty_like(drawn)
    _products_by_row(deviations.numpy(), rows.long().numpy(), drawn.numpy(), noise.numpy())
    return vectors + F.pad(noise, (0, vectors.shape[-1] - noise.shape[-1]))


def side_by_side(features: list[Tensor]) -> Tensor:
    """Features (..., fields, dim) joined along their fields, their leading axes broadcast."""
    lead = torch.broadcast_shapes(*(part.shape[:-2] for part in features))  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*lead, *part.shape[-2:]) for part in features], -2)


@compiled_parallel
def _products_by_row(matrices: Floats, rows: Ints, vectors: Floats, products: Floats) -> None:
    """The product of the matrix of each row with a vector: Σ_b matrices[row, a, b]·vector[b].

    Without a copy of a matrix for each row, which takes ten times as long as the products.
    """
    dim = vectors.shape[1]
    for n in numba.prange(len(rows)):
        matrix, vector = matrices[rows[n]], vectors[n]
        for a in range(dim):
            total = np.float32(0)
            for b in range(dim):
                total += matrix[a, b] * vector[b]
            products[n, a] = total


class Materialised(FullEmbedding):
    """One row per id: the id's vector in `source`, as of the last `refresh`.

    So code for tables of rows works with sums, products and mixtures of rows too. The rows are
    not parameters, and are neither trained, saved nor counted.

    >>> from celrec.embeddings.personal import BiasedEmbedding
    >>> source = BiasedEmbedding(FullEmbedding(3, 2))
    >>> view = Materialised(source)
    >>> bool((view(torch.arange(3)) == source(torch.arange(3))).all())
    True
    """

    def __init__(self, source: Embedding) -> None:
        with torch.no_grad():  # parameters may be integers
            like = source(torch.tensor([-1], device=next(source.parameters()).device))
        super().__init__(
            source.num_embeddings, source.embedding_dim, device=like.device, dtype=like.dtype
        )
        self.weight.requires_grad_(False)
        self._source = (source,)  # in a tuple, since its parameters are not this table's
        self.refresh()

    def reset_parameters(self) -> None:
        """Nothing to draw: the rows are those of the source."""

    @property
    def source(self) -> Embedding:
        """The table whose vectors these are."""
        return self._source[0]

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the vectors of all ids anew; the last row is that of unseen ids."""
        ids = torch.arange(self.num_embeddings + 1, device=self.weight.device)
        ids[-1] = -1
        self.weight.copy_(self.source(ids))


def combines_rows(table: Embedding) -> bool:
    """Whether a vector is computed from several rows; biases, rounding, and offsets aside.

    Levels are not counted: their lookups are quick, and `TopK` uses them.

    >>> from celrec.embeddings.compositional import CompositionalEmbedding
    >>> combines_rows(FullEmbedding(9, 2)), combines_rows(CompositionalEmbedding(9, 2, rows=6))
    (False, True)
    """
    if isinstance(table, BiasedEmbedding | QuantisedEmbedding):
        return combines_rows(table.rows)
    if isinstance(table, PersonalEmbedding):
        return combines_rows(table.shared)
    return not isinstance(table, SharedRows | LevelledEmbedding)
