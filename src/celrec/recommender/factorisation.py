"""The dot-product recommender: a table of users, a table of items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from celrec.data.interactions import Interactions
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.errors import CelrecError
from celrec.models.dot_product import BiasedDotProduct, DotProduct


class Materialised(FullEmbedding):
    """A row for every id that holds its vector in `source`, as it was when last refreshed.

    So what is known to work with rows works with sums, products and mixtures of rows
    too. It is a view: what it shows is learned, saved and counted with its source.

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
        """Take up the vectors that the source has now; the last row is that of unseen ids."""
        ids = torch.arange(self.num_embeddings + 1, device=self.weight.device)
        ids[-1] = -1
        self.weight.copy_(self.source(ids))


_CHUNK = 1 << 20
_SMALL = 0.1  # what rows start with where biases explain most of a rating


class Biases(NamedTuple):
    """μ, and the biases of all users and items, with those of unseen ones in the last places."""

    mean: Tensor
    users: Tensor
    items: Tensor


class Factorisation(nn.Module):
    """y = a_user · b_item, or with biases y = μ + b_user + b_item + a_user · b_item.

    The rows of either side are shared as their tables will. Of tables whose ids do not
    have one row each, the vectors are written out as rows for those who ask for rows.

    >>> from celrec.embeddings.full import FullEmbedding
    >>> model = Factorisation(FullEmbedding(3, 4), FullEmbedding(5, 4))
    >>> model(torch.tensor([0, 1]), torch.tensor([4, 4])).shape
    torch.Size([2])
    """

    def __init__(self, users: Embedding, items: Embedding) -> None:
        super().__init__()
        if isinstance(users, BiasedEmbedding) != isinstance(items, BiasedEmbedding):
            raise CelrecError("users and items must both have biases, or neither")
        self.users = users
        self.items = items
        self.model: BiasedDotProduct | DotProduct
        self.model = BiasedDotProduct() if isinstance(users, BiasedEmbedding) else DotProduct()
        # In a dictionary, since views are not part of the state.
        self._views: dict[str, Materialised] = {}

    @property
    def biases(self) -> Biases | None:
        """The biases, if there are any."""
        if (
            isinstance(self.model, BiasedDotProduct)
            and isinstance(self.users, BiasedEmbedding)
            and isinstance(self.items, BiasedEmbedding)
        ):
            return Biases(self.model.mean, self.users.bias, self.items.bias)
        return None

    @property
    def whole_tables(self) -> dict[str, Embedding]:
        """The tables of both sides, biases included."""
        return {"users": self.users, "items": self.items}

    @property
    def user_rows(self) -> SharedRows:
        """The table of the users' factors, without biases."""
        return self._rows("users", self.users)

    @property
    def item_rows(self) -> SharedRows:
        """The table of the items' factors, without biases."""
        return self._rows("items", self.items)

    kept: ClassVar[Mapping[str, int]] = {}
    """See `IdModel`; here all rows are learned."""

    @property
    def tables(self) -> dict[str, SharedRows]:
        """The rows of both sides, without biases."""
        return {"users": self.user_rows, "items": self.item_rows}

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """The prediction for each pair of ids."""
        predicted: Tensor = self.model(self.users(user), self.items(item))
        return predicted

    @torch.no_grad()
    def predict(self, log: Interactions) -> Tensor:
        """The prediction for each row of a log, in bounded memory."""
        predicted = torch.empty(len(log))
        for start in range(0, len(log), _CHUNK):
            rows = slice(start, start + _CHUNK)
            user = torch.from_numpy(log.user[rows].astype(np.int64))
            item = torch.from_numpy(log.item[rows].astype(np.int64))
            predicted[rows] = self(user, item)
        return predicted

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, *, per_row: bool = False) -> None:
        """The paper's start for non-negative factors; small normal ones with biases.

        A full table of |N(0, 1)| is divided by its largest value, or each row by its
        own; a cluster's row is the mean over its members. With biases, factors begin
        as N(0, 0.1²) and biases as 0. Where an id has no row to itself or shared, the
        table begins as it was made, or with the absolute values of that.
        """
        for table in (self.user_rows, self.item_rows):
            if isinstance(table, Materialised):
                if not self.biases:
                    for parameter in table.source.non_negative_parameters():
                        parameter.abs_()
                table.refresh()
            elif self.biases:
                table.weight.normal_(0, _SMALL, generator=generator)
            else:
                _start_non_negative(table, generator, per_row)
        for bias in self.biases or ():
            bias.zero_()

    def _rows(self, side: str, table: Embedding) -> SharedRows:
        rows = table.rows if isinstance(table, BiasedEmbedding) else table
        rows = rows.rows if isinstance(rows, QuantisedEmbedding) else rows
        if isinstance(rows, SharedRows) and not rows.needs_gradients:
            return rows
        view = self._views.get(side)
        if view is None or view.source is not rows:
            view = self._views[side] = Materialised(rows)
        return view


def _start_non_negative(table: SharedRows, generator: torch.Generator, per_row: bool) -> None:
    full = torch.randn(table.num_embeddings, table.embedding_dim, generator=generator).abs()
    full /= full.amax(1, keepdim=True) if per_row else full.max()
    rows = table.row_of(torch.arange(table.num_embeddings))
    sums = torch.zeros_like(table.weight).index_add_(0, rows, full)
    sizes = torch.bincount(rows, minlength=len(sums)).clamp_(min=1)
    table.weight.copy_(sums / sizes[:, None])
    if not isinstance(table, ClusteredEmbedding):  # rows that no id has, for unseen ones
        unused = torch.bincount(rows, minlength=len(sums)) == 0
        table.weight[unused] = full.mean(0)
