"""Scores of models that are dot products."""

from __future__ import annotations

from torch import Tensor

from celrec.serving.user_scores import UserScores
from celrec.training.id_model import IdModel
from celrec.training.model import Model


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
        if isinstance(self._model, IdModel):
            return self._model.loss.prediction(outputs)
        return outputs
