"""Scores of items for users or for other items: dot products, cosines, networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor

from celrec.embeddings.levelled import LevelledEmbedding
from celrec.recommender.batch import HISTORY, Batch
from celrec.recommender.model import Model


class UserScores(ABC):
    """Scores of items for a fixed batch of queries (users, or items for similarity)."""

    at_once: ClassVar[int]
    """The largest number of (query, item) pairs scored at once, which bounds memory."""

    @abstractmethod
    def scores(self, items: Tensor) -> Tensor:
        """(queries, items): raw scores, in the order of the predictions.

        Terms that depend on the user alone, and the bias of an item, may be left out.
        """

    @abstractmethod
    def predictions(self, scores: Tensor) -> Tensor:
        """(queries, any): predictions on the scale of the targets, from complete raw scores."""


class LinearScores(UserScores):
    """score = s·v for the slope s of the user and the vector v of the item: a matrix product.

    The constant of the user is added by `predictions`. With `own_apart`, the last column of an
    item vector is the bias of the item, and is left out.
    """

    at_once = 1 << 21

    def __init__(self, model: Model, users: Tensor, *, own_apart: bool) -> None:
        self._model = model
        self._constant, slope = model.model.line(model.users(users))
        self._width = slope.shape[-1] - own_apart
        self._slope = slope[:, : self._width].contiguous()

    def scores(self, items: Tensor) -> Tensor:
        """(users, items): s·v, without the constants of users."""
        vectors: Tensor = self._model.items(items)
        return self._slope @ vectors[:, : self._width].T

    def of_levels(self, table: LevelledEmbedding) -> Tensor:
        """(users, rows): the part of the score that each row of each level adds."""
        products = [
            self._slope[:, table.part_of(number)] @ level.weight[: level.num_clusters].T
            for number, level in enumerate(table.clustered_levels)
        ]
        return torch.cat(products, 1)

    def predictions(self, scores: Tensor) -> Tensor:
        """Adds the constants of users and applies the link function of the loss."""
        outputs = scores + self._constant.unsqueeze(-1)
        return self._model.loss.prediction(outputs)


class CosineScores(UserScores):
    """The cosine of the angle between the vectors of some items and those of others.

    Biases and the scalars of a linear part are left out: they describe the popularity of an item,
    not its content. A zero vector has a cosine of 0 with all others.
    """

    at_once = 1 << 21

    def __init__(self, model: Model, items: Tensor) -> None:
        self._model = model
        self._directions = self._of(items)

    def scores(self, items: Tensor) -> Tensor:
        """(given items, items): cosines."""
        return self._directions @ self._of(items).T

    def predictions(self, scores: Tensor) -> Tensor:
        """Clamps to −1 … 1, since rounding may exceed it."""
        return scores.clamp(-1, 1)

    def _of(self, items: Tensor) -> Tensor:
        vectors: Tensor = self._model.items(items)
        width = vectors.shape[-1] - self._model.model.extra_columns
        return F.normalize(vectors[:, :width], dim=-1)


class NetworkScores(UserScores):
    """Outputs of a network for users with their present features and histories.

    Parts that depend on the users alone are computed once. With several tasks, the first one is
    scored.
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
        """(users, items): the output of the network."""
        batch = self._users._replace(item=items[:, None])
        vectors = {**self._vectors, "items": self._model.items(items)[:, None]}
        outputs = _first_task(self._model.output_from(batch, vectors))
        return outputs.T.contiguous()

    def of_candidates(self, items: Tensor) -> Tensor:
        """(users, candidates): scores where each user has its own candidate items."""
        several = {name: vectors[:, None] for name, vectors in self._vectors.items()}
        vectors = {**several, "items": self._model.items(items)}
        history = self._users.history
        batch = self._users._replace(
            user=self._users.user[:, None],
            item=items,
            history=None if history is None else history[:, None],
        )
        return _first_task(self._model.output_from(batch, vectors))

    def predictions(self, scores: Tensor) -> Tensor:
        """Applies the link function of the loss."""
        # With a task axis: some losses need it, the others accept it.
        return self._model.loss.prediction(scores.unsqueeze(-1)).reshape(scores.shape)


def _first_task(outputs: Tensor) -> Tensor:
    """Outputs of the first task; several tasks have an axis of their own."""
    return outputs if outputs.ndim == 2 else outputs[..., 0]
