"""A recommender with any interaction model: tables, features, history, model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from celrec.data.histories import Histories
from celrec.data.interactions import Interactions
from celrec.embeddings.shared_rows import SharedRows
from celrec.models.history import History
from celrec.models.interaction import Interaction
from celrec.training.batch import Batch
from celrec.training.feature_tables import FeatureTables

_CHUNK = 1 << 14


class Recommender(nn.Module):
    """Ids to vectors by the tables, vectors to predictions by the model.

    The items of a history have the vectors of the same table as the target; an empty
    place is no item. With `history_length` 0 the model sees no history.
    """

    def __init__(
        self,
        users: SharedRows,
        items: SharedRows,
        model: Interaction,
        user_features: FeatureTables,
        item_features: FeatureTables,
        history_length: int = 0,
    ) -> None:
        super().__init__()
        self.users, self.items, self.model = users, items, model
        self.user_features, self.item_features = user_features, item_features
        self.history_length = history_length
        self._histories: Histories | None = None

    @property
    def user_rows(self) -> SharedRows:
        """The table of the users."""
        return self.users

    @property
    def item_rows(self) -> SharedRows:
        """The table of the items."""
        return self.items

    def forward(self, batch: Batch) -> Tensor:
        """The prediction for each sample."""
        item = self.items(batch.item)  # first of all: whoever judges items sees them as targets
        features = torch.cat([self.user_features(batch.user), self.item_features(batch.item)], -2)
        history = None
        if batch.history is not None:
            history = History(self.items(batch.history), batch.history >= 0)
        predicted: Tensor = self.model(self.users(batch.user), item, history, features)
        return predicted

    def remember(self, log: Interactions) -> None:
        """Let the histories be those in `log`, the training data."""
        self._histories = Histories(log) if self.history_length else None

    def batch(self, log: Interactions, rows: Tensor | slice, *, own: bool) -> Batch:
        """Samples of a log; `own` if it is the one that is remembered, and not from outside."""
        part = log[rows.numpy() if isinstance(rows, Tensor) else rows]
        history = None
        if self._histories is not None:
            if own:
                numbers = np.arange(len(log))[rows.numpy() if isinstance(rows, Tensor) else rows]
                before = self._histories.at_rows(numbers, self.history_length)
            else:
                before = self._histories.before(part, self.history_length)
            history = torch.from_numpy(before.astype(np.int64))
        return Batch(
            torch.from_numpy(part.user.astype(np.int64)),
            torch.from_numpy(part.item.astype(np.int64)),
            torch.tensor(part.target),
            history,
        )

    @torch.no_grad()
    def predict(self, log: Interactions) -> Tensor:
        """The prediction for each row of a log from outside, in bounded memory."""
        predicted = torch.empty(len(log))
        for start in range(0, len(log), _CHUNK):
            rows = slice(start, min(start + _CHUNK, len(log)))
            predicted[rows] = self(self.batch(log, rows, own=False))
        return predicted
