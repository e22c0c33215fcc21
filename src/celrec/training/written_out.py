"""The vectors of a table whose ids do not have one row each, written out as rows."""

from __future__ import annotations

import torch

from celrec.embeddings.embedding import Embedding
from celrec.embeddings.full import FullEmbedding


class WrittenOut(FullEmbedding):
    """A row for every id that holds its vector in `source`, as it was when last refreshed.

    So what is known to work with rows works with sums, products and mixtures of rows
    too. It is a view: what it shows is learned, saved and counted with its source.

    >>> from celrec.embeddings.biased import BiasedEmbedding
    >>> source = BiasedEmbedding(FullEmbedding(3, 2))
    >>> view = WrittenOut(source)
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
        """Take up the vectors that the source has now; the last row is that of unseen ids."""
        ids = torch.arange(self.num_embeddings + 1, device=self.weight.device)
        ids[-1] = -1
        self.weight.copy_(self.source(ids))
