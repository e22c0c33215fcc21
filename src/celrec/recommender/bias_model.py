"""The baseline of biases: a mean, and a bias for each user and item."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from celrec.data.interactions import Interactions

_STRENGTHS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_SWEEPS, _TOLERANCE = 300, 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class BiasModel:
    """y = μ + b_user + b_item, the baseline that any recommender has to beat.

    The biases minimise Σ (x − y)² + λ·(Σ b_user² + Σ b_item²), by coordinate descent: given
    the others, each is the shrunk mean of its residuals, Σ residual / (n + λ). The bias of an
    id without training data is 0.

    >>> import celrec
    >>> log = celrec.read({"user": [1, 1, 2, 2], "item": [7, 8, 7, 8], "rating": [5, 3, 3, 1]})
    >>> model = BiasModel.fit(log, strength=0)
    >>> model.predict(log).round(3).tolist()
    [5.0, 3.0, 3.0, 1.0]
    """

    mean: float
    user_bias: NDArray[np.float64]
    item_bias: NDArray[np.float64]
    strength: float
    """λ."""

    @classmethod
    def fit(cls, train: Interactions, strength: float) -> BiasModel:
        """Fit the biases for a given λ, without rows that have an unseen id."""
        train = train.seen()
        mean = float(np.mean(train.target, dtype=np.float64))
        centred = train.target.astype(np.float64) - mean
        user_weight = 1 / np.maximum(train.user_counts + strength, 1e-12)
        item_weight = 1 / np.maximum(train.item_counts + strength, 1e-12)
        user_bias, item_bias = np.zeros(train.num_users), np.zeros(train.num_items)
        fitted = np.zeros(len(train))
        for _ in range(_SWEEPS):
            residual = centred - user_bias[train.user]
            item_bias = np.bincount(train.item, residual, train.num_items) * item_weight
            of_item = item_bias[train.item]
            user_bias = np.bincount(train.user, centred - of_item, train.num_users) * user_weight
            before, fitted = fitted, user_bias[train.user] + of_item
            # Biases may go on drifting against each other long after their sums have settled.
            if np.abs(fitted - before).max() < _TOLERANCE:
                break
        return cls(mean, user_bias, item_bias, strength)

    @classmethod
    def tuned(cls, train: Interactions, valid: Interactions) -> BiasModel:
        """Fit biases for several λ and take those with the lowest squared error on `valid`."""
        fitted = [cls.fit(train, strength) for strength in _STRENGTHS]
        return min(fitted, key=lambda m: float(np.mean((m.predict(valid) - valid.target) ** 2)))

    def predict(self, events: Interactions) -> NDArray[np.float64]:
        """The expected target of each event; ids must be those of the training data."""
        return self.mean + _at(self.user_bias, events.user) + _at(self.item_bias, events.item)


def _at(bias: NDArray[np.float64], ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Biases by dense id, 0 for ids that are unseen or newer than the model."""
    known = (ids >= 0) & (ids < len(bias))
    return np.where(known, bias[np.where(known, ids, 0)], 0.0)
