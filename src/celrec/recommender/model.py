"""The recommender: tables of ids, features, a history, and an interaction model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from celrec.data.histories import Histories
from celrec.data.id_map import UNSEEN
from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.errors import CelrecError
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.models.interaction import LOSSES, History, Interaction, Loss
from celrec.recommender.batch import HISTORY, Batch, FeatureTables
from celrec.recommender.vectors import (
    Materialised,
    add_noise,
    all_vectors,
    chosen,
    combines_rows,
    history_of,
    side_by_side,
)
from celrec.runtime.memory_budget import MemoryBudget


class Biases(NamedTuple):
    """μ, and the biases of all users and items, with those of unseen ids in the last places."""

    mean: Tensor
    users: Tensor
    items: Tensor


class Model(nn.Module):
    """A recommender: tables turn ids into vectors, an interaction model scores the vectors.

    Matrix factorisation is a model with a dot product: y = a_user · b_item, or with biases
    y = μ + b_user + b_item + a_user · b_item. A bias is the last number of a vector: a column of
    the row, or where rows are shared and biases are not, of a table of biases (`BiasedEmbedding`).
    Networks may also read features, vectors of ids in further columns of the log, and a history of
    the user's last `history_length` items.

    >>> from celrec.embeddings.full import FullEmbedding
    >>> model = Model(FullEmbedding(3, 4), FullEmbedding(5, 4))
    >>> model(Batch.pairs(torch.tensor([0, 1]), torch.tensor([4, 4]))).shape
    torch.Size([2])
    """

    def __init__(
        self,
        users: Embedding,
        items: Embedding,
        model: Interaction | None = None,
        user_features: FeatureTables | None = None,
        item_features: FeatureTables | None = None,
        *,
        columns: Mapping[str, Embedding] | None = None,
        history_length: int = 0,
        loss: Loss = LOSSES["squared-error"],
    ) -> None:
        """Without an interaction `model`: a dot product, with biases if the tables have them."""
        super().__init__()
        biased = isinstance(users, BiasedEmbedding)
        if biased != isinstance(items, BiasedEmbedding):
            raise CelrecError("users and items must both have biases, or neither")
        if model is None:
            model = BiasedDotProduct() if biased else DotProduct()
        if biased and not model.extra_columns:
            raise CelrecError(f"{type(model).__name__} reads no biases; give tables without them")
        columns = columns or {}
        for name in ("users", "items", HISTORY):
            if name in columns:
                raise CelrecError(f"columns: {name!r} is the name of another table; rename it")
        self.users, self.items, self.model = users, items, model
        if user_features is None:
            user_features = FeatureTables([], users.embedding_dim)
        if item_features is None:
            item_features = FeatureTables([], items.embedding_dim)
        self.user_features, self.item_features = user_features, item_features
        self.column_names = tuple(columns)
        self.column_tables = nn.ModuleList(columns.values())
        self.history_length, self.loss = history_length, loss
        self._histories: Histories | None = None
        # In a dictionary, since views are not part of the state.
        self._views: dict[str, Materialised] = {}
        self.frozen_columns: dict[str, int] = {}
        """Tables with frozen clusters, and the number of frozen leading columns of their rows."""
        self.deviations: dict[str, Tensor] = {}
        """For tables with uncertain rows, a matrix L per row: in training, vectors are drawn from
        N(row, L·Lᵀ)."""
        self.draw_normal: Callable[[torch.Size], Tensor] = torch.randn
        """Draws numbers from N(0, 1) for these."""

    @property
    def whole_tables(self) -> dict[str, Embedding]:
        """All tables of ids: users, items, and further columns by their names."""
        further = zip(self.column_names, self.column_tables, strict=True)
        return {"users": self.users, "items": self.items, **dict(further)}  # type: ignore[arg-type]

    @property
    def tables(self) -> dict[str, Embedding]:
        """The same without biases and rounding: the tables that training moves."""
        return {name: _beneath(table) for name, table in self.whole_tables.items()}

    @property
    def row_tables(self) -> dict[str, SharedRows]:
        """Users and items as tables of rows, without biases; `Materialised` if composed."""
        return {"users": self.user_rows, "items": self.item_rows}

    @property
    def user_rows(self) -> SharedRows:
        """The users as a table of rows."""
        return self._rows("users", self.users)

    @property
    def item_rows(self) -> SharedRows:
        """The items as a table of rows."""
        return self._rows("items", self.items)

    def _rows(self, name: str, table: Embedding) -> SharedRows:
        rows = _beneath(table)
        if isinstance(rows, SharedRows) and not rows.needs_gradients:
            return rows
        view = self._views.get(name)
        if view is None or view.source is not rows:
            view = self._views[name] = Materialised(rows)
        return view

    @property
    def biases(self) -> Biases | None:
        """The biases of a dot product, where they have tables of their own."""
        if (
            isinstance(self.model, BiasedDotProduct)
            and isinstance(self.users, BiasedEmbedding)
            and isinstance(self.items, BiasedEmbedding)
        ):
            return Biases(self.model.mean, self.users.bias, self.items.bias)
        return None

    @property
    def factorised(self) -> bool:
        """Whether it is a matrix factorisation: rows explain what biases leave, squared error."""
        apart = self.biases is not None or not self.model.extra_columns
        squared = self.loss is LOSSES["squared-error"]
        return self.model.bilinear and apart and squared and not self.column_names

    def replace_tables(self, change: Callable[[str, Embedding], Embedding]) -> None:
        """Put `change(name, table)` in the place of each table of ids."""
        changed = {name: change(name, table) for name, table in self.whole_tables.items()}
        self.users, self.items = changed["users"], changed["items"]
        for number, name in enumerate(self.column_names):
            self.column_tables[number] = changed[name]

    def with_materialised_items(self) -> Model:
        """A model with the same predictions, whose item vectors are computed in advance.

        It shares everything else. This model itself, if lookups of items are as fast already.

        >>> from celrec.embeddings.full import FullEmbedding
        >>> from celrec.embeddings.posterior import PosteriorEmbedding
        >>> slow = Model(FullEmbedding(4, 2), PosteriorEmbedding(5, 2, rows=3))
        >>> fast = slow.with_materialised_items()
        >>> type(fast.items).__name__, type(slow.items).__name__
        ('Materialised', 'PosteriorEmbedding')
        >>> torch.equal(fast.items(torch.tensor([3, -1])), slow.items(torch.tensor([3, -1])))
        True
        """
        if not combines_rows(self.items):
            return self
        fast = copy(self)
        fast._modules = dict(self._modules)  # the copy has the same dictionary
        fast.items = Materialised(self.items)
        return fast

    def use_budget(self, budget: MemoryBudget) -> None:
        """Allocate the per-id arrays of all tables under a budget."""
        for table in self.whole_tables.values():
            table.use_budget(budget)

    def forward(self, batch: Batch) -> Tensor:
        """The output for each sample."""
        everyone = all_vectors(self.items, batch)
        # Items first, since evidence about items replaces the first lookup.
        if everyone is None:
            vectors = {"items": self.vectors("items", self.items, batch.item)}
        else:
            vectors = {"items": chosen(everyone, batch.item)}
        if batch.columns is not None:
            ids = batch.columns.unbind(-1)
            named = zip(self.column_names, self.column_tables, ids, strict=True)
            vectors |= {name: table(those) for name, table, those in named}
        history = None if batch.history is None else self._history(batch, everyone)
        vectors["users"] = self.vectors("users", self.users, batch.user)
        return self._output(batch, vectors, history)

    def output_from(self, batch: Batch, vectors: Mapping[str, Tensor]) -> Tensor:
        """The output for each sample, given the vectors by the names of their tables, or HISTORY.

        Leading axes are broadcast: users may be candidates of shape (candidates, 1, dim).
        """
        history = None
        if batch.history is not None:
            history = History(vectors[HISTORY], batch.history >= 0)
        return self._output(batch, vectors, history)

    def _output(
        self, batch: Batch, vectors: Mapping[str, Tensor], history: History | None
    ) -> Tensor:
        known = ((self.user_features, batch.user), (self.item_features, batch.item))
        features = [feature(ids) for feature, ids in known if len(feature)]
        features += [vectors[name].unsqueeze(-2) for name in self.column_names]
        together = side_by_side(features) if features else None
        output: Tensor = self.model(vectors["users"], vectors["items"], history, together)
        return output

    def vectors(self, name: str, table: Embedding, ids: Tensor) -> Tensor:
        """The vectors of ids; in training, uncertain ones are drawn from their distribution."""
        vectors: Tensor = table(ids)
        if self.training and name in self.deviations:
            rows = _beneath(table)
            if isinstance(rows, SharedRows):
                deviations = self.deviations[name]
                return add_noise(vectors, rows.row_of(ids), deviations, self.draw_normal)
        return vectors

    def _history(self, batch: Batch, everyone: Tensor | None) -> History:
        exact = not (self.training and "items" in self.deviations)
        return history_of(self.items, batch, everyone, with_targets=exact)

    def output(self, batch: Batch) -> Tensor:
        """What the loss is computed from: the output, or its margin over the worse item's."""
        output: Tensor = self(batch)
        if batch.worse is None:
            return output
        worse: Tensor = self(batch._replace(item=batch.worse))
        return output - worse

    def objective(self, batch: Batch) -> Tensor:
        """The loss of each sample."""
        return self.loss.of_samples(self.output(batch), batch.target)

    def auxiliary(self, batch: Batch) -> Tensor | None:
        """The auxiliary loss of the interaction model, if it has one."""
        if batch.history is None or batch.not_next is None:
            return None
        history = self._history(batch, all_vectors(self.items, batch))
        return self.model.auxiliary(history, self.items(batch.not_next))

    def auxiliary_terms(self, batch: Batch) -> int:
        """The number of terms in the mean of `auxiliary`."""
        if batch.history is None:
            return 0
        return int(self.model.auxiliary_terms(batch.history >= 0))

    def remember(self, log: Interactions) -> None:
        """Take histories from `log`, the training data, if the model reads them."""
        self._histories = Histories(log) if self.history_length else None

    def batch(self, log: Interactions, rows: Tensor | slice, *, own: bool) -> Batch:
        """Samples of a log; `own` if it is the log of `remember`."""
        part, before = log[rows if isinstance(rows, slice) else rows.numpy()], None
        if self._histories is not None and own:
            numbers = np.arange(len(log))[rows] if isinstance(rows, slice) else rows.numpy()
            before = self._histories.at_rows(numbers, self.history_length)
        elif self._histories is not None:
            before = self._histories.before(part, self.history_length)
        return Batch.of_log(part, self.column_names, before)

    def query_batch(self, users: Tensor) -> Batch:
        """A sample for each user, with the latest history, no item and unseen further ids."""
        nothing = torch.full_like(users, UNSEEN)
        history = columns = None
        if self._histories is not None:
            latest = self._histories.latest(users.numpy(), self.history_length)
            history = torch.from_numpy(latest.astype(np.int64))
        if self.column_names:
            columns = torch.stack([nothing] * len(self.column_names), -1)
        return Batch(users, nothing, torch.zeros(len(users)), history, columns=columns)

    @torch.no_grad()
    def predict(self, log: Interactions) -> Tensor:
        """The prediction for each row of a log, in bounded memory."""
        return self.loss.prediction(self.outputs(log))

    @torch.no_grad()
    def outputs(self, log: Interactions, chunk: int = 1 << 14) -> Tensor:
        """The output for each row of a log, `chunk` rows at a time."""
        starts = range(0, max(len(log), 1), chunk)
        parts = [self(self.batch(log, slice(s, s + chunk), own=False)) for s in starts]
        return torch.cat(parts)


def _beneath(table: Embedding) -> Embedding:
    """The table without biases and rounding."""
    table = table.rows if isinstance(table, BiasedEmbedding) else table
    return table.rows if isinstance(table, QuantisedEmbedding) else table
