"""How alike items are."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor

from celrec.serving.user_scores import UserScores
from celrec.training.model import Model


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
