"""Scores of networks."""

from __future__ import annotations

from torch import Tensor

from celrec.serving.user_scores import UserScores
from celrec.training.batch import Batch
from celrec.training.id_model import HISTORY, IdModel


class NetworkScores(UserScores):
    """What a network puts out for users as they are at present.

    What depends on the users alone is computed once for all items. Of several tasks, the first
    is what is predicted.
    """

    at_once = 1 << 14

    def __init__(self, model: IdModel, users: Batch) -> None:
        self._model, self._users = model, users
        self._vectors = {"users": model.users(users.user)}
        if users.history is not None:
            self._vectors[HISTORY] = model.items(users.history)
        if users.columns is not None:
            ids = users.columns.unbind(-1)
            named = zip(model.column_names, model.column_tables, ids, strict=True)
            self._vectors |= {name: table(those) for name, table, those in named}

    def scores(self, items: Tensor) -> Tensor:
        """See `UserScores`."""
        batch = self._users._replace(item=items[:, None])
        vectors = {**self._vectors, "items": self._model.items(items)[:, None]}
        outputs = _first_task(self._model.output_from(batch, vectors))
        return outputs.T.contiguous()

    def of_candidates(self, items: Tensor) -> Tensor:
        """(users, candidates): scores of items of their own for each user."""
        several = {name: vectors[:, None] for name, vectors in self._vectors.items()}
        vectors = {**several, "items": self._model.items(items)}
        history = self._users.history
        batch = self._users._replace(
            user=self._users.user[:, None],
            item=items,
            history=None if history is None else history[:, None],
        )
        return _first_task(self._model.output_from(batch, vectors))

    def told(self, scores: Tensor) -> Tensor:
        """See `UserScores`."""
        # With an axis for tasks, which some losses expect, and others do not mind.
        return self._model.loss.prediction(scores.unsqueeze(-1)).reshape(scores.shape)


def _first_task(outputs: Tensor) -> Tensor:
    """Where there are several, they have an axis of their own."""
    return outputs if outputs.ndim == 2 else outputs[..., 0]
