"""Scores of items: dot products, cosines, networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor

from celrec.recommender.batch import HISTORY, Batch
from celrec.recommender.model import Model


class UserScores(ABC):
    """Some users, ready to score any items."""

    at_once: ClassVar[int]
    """How many pairs of users and items may be scored at once: so memory is bounded."""

    @abstractmethod
    def scores(self, items: Tensor) -> Tensor:
        """(users, items): the higher, the better, in the order of what is predicted.

        What depends on the user alone, or on the item's own bias alone, may be left out.
        """

    @abstractmethod
    def told(self, scores: Tensor) -> Tensor:
        """(users, any): what is predicted, on the scale of the targets, given complete scores."""


class LinearScores(UserScores):
    """score = s·v for slopes s of the user and the vector v of the item: a matrix product.

    The constant of a user is added in the end. With `own_apart`, the last column of an item's
    vector is its own bias, and left out.
    """

    at_once = 1 << 21

    def __init__(self, model: Model, users: Tensor, *, own_apart: bool) -> None:
        self._model = model
        self._constant, slope = model.model.line(model.users(users))
        self._width = slope.shape[-1] - own_apart
        self._slope = slope[:, : self._width].contiguous()

    def scores(self, items: Tensor) -> Tensor:
        """See `UserScores`."""
        vectors: Tensor = self._model.items(items)
        return self._slope @ vectors[:, : self._width].T

    def told(self, scores: Tensor) -> Tensor:
        """See `UserScores`."""
        outputs = scores + self._constant.unsqueeze(-1)
        return self._model.loss.prediction(outputs)


class CosineScores(UserScores):
    """The cosine of the angle between the vectors of some items and those of others.

    Biases, and the scalars that a linear part has for each id, are left out; they tell how good an
    item is, not what it is like. A vector of zeros has a cosine of 0 with all others.
    """

    at_once = 1 << 21

    def __init__(self, model: Model, items: Tensor) -> None:
        self._model = model
        self._directions = self._of(items)

    def scores(self, items: Tensor) -> Tensor:
        """See `UserScores`."""
        return self._directions @ self._of(items).T

    def told(self, scores: Tensor) -> Tensor:
        """Rounding may have made a cosine larger than 1."""
        return scores.clamp(-1, 1)

    def _of(self, items: Tensor) -> Tensor:
        vectors: Tensor = self._model.items(items)
        width = vectors.shape[-1] - self._model.model.extra_columns
        return F.normalize(vectors[:, :width], dim=-1)


class NetworkScores(UserScores):
    """What a network puts out for users as they are at present.

    What depends on the users alone is computed once for all items. Of several tasks, the first
    is what is predicted.
    """

    at_once = 1 << 14

    def __init__(self, model: Model, users: Batch) -> None:
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
