"""Tables whose vectors were computed from those of another table."""

from __future__ import annotations

import torch

from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding


class Materialised(FullEmbedding):
    """A row for each id that holds the id's vector in `source`, as of the last `refresh`.

    So whatever works with rows works with sums, products and mixtures of rows too. It is a
    view: its rows are not parameters, and are neither learned, saved nor counted.

    >>> from celrec.embeddings.biased import BiasedEmbedding
    >>> source = BiasedEmbedding(FullEmbedding(3, 2))
    >>> view = Materialised(source)
    >>> bool((view(torch.arange(3)) == source(torch.arange(3))).all())
    True
    """

    def __init__(self, source: Embedding) -> None:
        like = next(source.parameters())
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

    >>> from celrec.embeddings.compositional import CompositionalEmbedding
    >>> combines_rows(FullEmbedding(9, 2)), combines_rows(CompositionalEmbedding(9, 2, rows=6))
    (False, True)
    """
    if isinstance(table, BiasedEmbedding | QuantisedEmbedding):
        return combines_rows(table.rows)
    if isinstance(table, PersonalEmbedding):
        return combines_rows(table.shared)
    return not isinstance(table, SharedRows)
