"""A recommender with any interaction model: tables, features, history, model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from numpy.typing import NDArray
from torch import Tensor, nn

from celrec.data.histories import Histories
from celrec.data.id_map import UNSEEN
from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import Embedding, SharedRows
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.errors import CelrecError
from celrec.models.interaction import History, Interaction
from celrec.models.losses import LOSSES, Loss
from celrec.recommender.batch import Batch
from celrec.recommender.feature_tables import FeatureTables
from celrec.recommender.kernels import products_by_row
from celrec.runtime.memory_budget import MemoryBudget

HISTORY = "history"
"""The name of the vectors of a history."""
_CHUNK = 1 << 14


class IdModel(nn.Module):
    """Ids to vectors by the tables, vectors to predictions by the model.

    The items of a history have the vectors of the same table as the target; an empty
    place is no item. With `history_length` 0 the model sees no history. Ids in
    further columns of the log have tables of their own, and their vectors stand
    beside those of the features.
    """

    def __init__(
        self,
        users: Embedding,
        items: Embedding,
        model: Interaction,
        user_features: FeatureTables,
        item_features: FeatureTables,
        *,
        columns: Mapping[str, Embedding] | None = None,
        history_length: int = 0,
        loss: Loss = LOSSES["squared-error"],
    ) -> None:
        super().__init__()
        self.users, self.items, self.model = users, items, model
        self.user_features, self.item_features = user_features, item_features
        columns = columns or {}
        for name in ("users", "items", HISTORY):
            if name in columns:
                raise CelrecError(f"columns: {name!r} is the name of another table; rename it")
        self.column_names = tuple(columns)
        self.column_tables = nn.ModuleList(columns.values())
        self.history_length, self.loss = history_length, loss
        self._histories: Histories | None = None
        self.kept: dict[str, int] = {}
        """The tables whose clusters stay, and how many of the first numbers of their rows do."""
        self.deviations: dict[str, Tensor] = {}
        """For tables whose rows are uncertain, a matrix L for each row: in training, a row is
        drawn from N(row, L·Lᵀ) instead of being taken as it is."""
        self.normal: Callable[[torch.Size], Tensor] = torch.randn
        """Draws numbers from N(0, 1), for rows that are drawn."""

    @property
    def user_rows(self) -> Embedding:
        """The table of the users."""
        return self.tables["users"]

    @property
    def item_rows(self) -> Embedding:
        """The table of the items."""
        return self.tables["items"]

    @property
    def whole_tables(self) -> dict[str, Embedding]:
        """All tables of ids: those of users and items, and of further columns by their names."""
        further = zip(self.column_names, self.column_tables, strict=True)
        return {"users": self.users, "items": self.items, **dict(further)}  # type: ignore[arg-type]

    def use_budget(self, budget: MemoryBudget) -> None:
        """See `Embedding`: all tables of ids."""
        for table in self.whole_tables.values():
            table.use_budget(budget)

    @property
    def tables(self) -> dict[str, Embedding]:
        """The same, with the rows beneath those that are quantised: what a solver can move."""
        return {
            side: table.rows if isinstance(table, QuantisedEmbedding) else table
            for side, table in self.whole_tables.items()
        }

    def forward(self, batch: Batch) -> Tensor:
        """What the model puts out for each sample."""
        everyone = self._everyone(batch)
        # Items first of all: whoever judges items sees them as targets.
        if everyone is None:
            vectors = {"items": self._vectors("items", batch.item)}
        else:
            chosen = everyone.index_select(0, batch.item.reshape(-1) - UNSEEN)
            vectors = {"items": chosen.view(*batch.item.shape, everyone.shape[-1])}
        if batch.columns is not None:
            ids = batch.columns.unbind(-1)
            named = zip(self.column_names, self.column_tables, ids, strict=True)
            vectors |= {name: table(those) for name, table, those in named}
        history = None if batch.history is None else self._history(batch, everyone)
        vectors["users"] = self._vectors("users", batch.user)
        return self._output(batch, vectors, history)

    def output_from(self, batch: Batch, vectors: Mapping[str, Tensor]) -> Tensor:
        """What the model puts out for each sample, given the vectors in the place of the tables.

        By the names of the tables, and HISTORY for those of the history. Their leading axes
        are broadcast: users of shape (candidates, 1, dim) are each tried for all samples.
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
        together = _joined(features) if features else None
        output: Tensor = self.model(vectors["users"], vectors["items"], history, together)
        return output

    def _everyone(self, batch: Batch) -> Tensor | None:
        """The vectors of an unseen item and of all items, if a batch asks for more than that.

        Methods that make a vector of several rows take many times as long as it takes to copy it.
        """
        ids, number = batch.history, self.items.num_embeddings
        if (
            ids is None
            or isinstance(self.items, SharedRows)
            or torch.compiler.is_compiling()
            or ids.numel() <= number
            or max(int(ids.max()), int(batch.item.max())) >= number  # methods may tell them apart
        ):
            return None
        everyone: Tensor = self.items(torch.arange(UNSEEN, number, device=ids.device))
        return everyone

    def _history(self, batch: Batch, everyone: Tensor | None) -> History:
        """Of rows where they lie, or of vectors that were made for each item."""
        assert batch.history is not None  # noqa: S101  (whoever calls has looked)
        items, ids, filled = self.items, batch.history, batch.history >= 0
        if everyone is not None:
            return History(None, filled, everyone, ids - UNSEEN)
        if isinstance(items, SharedRows) and items.plain and not torch.compiler.is_compiling():
            drawn = self.training and "items" in self.deviations
            target = None if drawn else items.row_of(batch.item)
            return History(None, filled, items.weight, items.row_of(ids), target)
        return History(items(ids), filled)

    def _vectors(self, side: str, ids: Tensor) -> Tensor:
        table = self.tables[side]
        vectors: Tensor = self.whole_tables[side](ids)
        deviations = self.deviations.get(side) if self.training else None
        if deviations is None or not isinstance(table, SharedRows):
            return vectors
        drawn = self.normal(torch.Size((*ids.shape, deviations.shape[-1])))
        noise = torch.empty_like(drawn)
        rows = table.row_of(ids).long().numpy()
        products_by_row(deviations.numpy(), rows, drawn.numpy(), noise.numpy())
        return vectors + F.pad(noise, (0, vectors.shape[-1] - noise.shape[-1]))

    def output(self, batch: Batch) -> Tensor:
        """What the loss is told: the output, or how far it is above that for the worse item."""
        output: Tensor = self(batch)
        if batch.worse is None:
            return output
        worse: Tensor = self(batch._replace(item=batch.worse))
        return output - worse

    def objective(self, batch: Batch) -> Tensor:
        """The loss of each sample."""
        return self.loss.of_samples(self.output(batch), batch.target)

    def auxiliary(self, batch: Batch) -> Tensor | None:
        """What the model wants to be lowered besides, if anything."""
        if batch.history is None or batch.not_next is None:
            return None
        history = self._history(batch, self._everyone(batch))
        return self.model.auxiliary(history, self.items(batch.not_next))

    def auxiliary_terms(self, batch: Batch) -> int:
        """How many terms that is the mean of."""
        if batch.history is None:
            return 0
        return int(self.model.auxiliary_terms(batch.history >= 0))

    def remember(self, log: Interactions) -> None:
        """Let the histories be those in `log`, the training data."""
        self._histories = Histories(log) if self.history_length else None

    def batch(self, log: Interactions, rows: Tensor | slice, *, own: bool) -> Batch:
        """Samples of a log; `own` if it is the one that is remembered, and not from outside."""
        numbers = np.arange(len(log))[rows] if isinstance(rows, slice) else rows.numpy()
        part = log[numbers]
        history = columns = None
        if self._histories is not None:
            if own:
                before = self._histories.at_rows(numbers, self.history_length)
            else:
                before = self._histories.before(part, self.history_length)
            history = _as_ids(before)
        if self.column_names:
            ids = [_as_ids(part.columns[name].values) for name in self.column_names]
            columns = torch.stack(ids, -1)
        return Batch(
            _as_ids(part.user),
            _as_ids(part.item),
            torch.tensor(part.target),
            history,
            columns=columns,
        )

    def present(self, users: Tensor) -> Batch:
        """A sample of each user after all that is remembered, with no item yet.

        Further columns of the log, of which nothing is known then, hold unseen ids.
        """
        nothing = torch.full_like(users, UNSEEN)
        history = columns = None
        if self._histories is not None:
            history = _as_ids(self._histories.latest(users.numpy(), self.history_length))
        if self.column_names:
            columns = torch.stack([nothing] * len(self.column_names), -1)
        return Batch(users, nothing, torch.zeros(len(users)), history, columns=columns)

    @torch.no_grad()
    def predict(self, log: Interactions) -> Tensor:
        """The prediction for each row of a log from outside, in bounded memory."""
        return self.loss.prediction(self.outputs(log))

    @torch.no_grad()
    def outputs(self, log: Interactions) -> Tensor:
        """What the model puts out for each row of a log from outside, in bounded memory."""
        starts = range(0, max(len(log), 1), _CHUNK)
        parts = [self(self.batch(log, slice(s, s + _CHUNK), own=False)) for s in starts]
        return torch.cat(parts)


def _joined(features: list[Tensor]) -> Tensor:
    """Side by side, for candidates in any of them."""
    lead = torch.broadcast_shapes(*(part.shape[:-2] for part in features))  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*lead, *part.shape[-2:]) for part in features], -2)


def _as_ids(values: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
