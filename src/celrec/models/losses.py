"""What a wrong prediction costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor


class Loss(NamedTuple):
    """A loss by sample, and how a prediction is told from what a model puts out."""

    of_samples: Callable[[Tensor, Tensor], Tensor]
    """From outputs and targets, of any shapes that can be broadcast."""
    prediction: Callable[[Tensor], Tensor]
    """From outputs, on the scale of the targets."""
    output: Callable[[float], float]
    """The one output that is best for targets with this mean."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Loss:
        """Itself: a model that is copied keeps its loss."""
        return self


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """(y − x)² for each sample."""
    return (output - target).square()


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """−x·log σ(y) − (1 − x)·log(1 − σ(y)) for each sample, y being a logit."""
    return F.softplus(output) - target * output


def ranking(margin: Tensor, target: Tensor) -> Tensor:
    """−log σ(y − y′) for each pair: the better one is to score higher (BPR)."""
    del target
    return F.softplus(-margin)


def rating_and_conversion(positive: float) -> Loss:
    """Two tasks, in the last axis: squared error, and cross-entropy of x ≥ `positive`; their sum.

    The prediction is that of the rating.
    """

    def both(outputs: Tensor, target: Tensor) -> Tensor:
        converted = (target >= positive).to(outputs.dtype)
        return squared_error(outputs[..., 0], target) + cross_entropy(outputs[..., 1], converted)

    return Loss(both, lambda outputs: outputs[..., 0], float)


def _unchanged(output: Tensor) -> Tensor:
    return output


def _logit(mean: float) -> float:
    share = min(max(mean, 1e-6), 1 - 1e-6)
    return math.log(share / (1 - share))


LOSSES = {
    "squared-error": Loss(squared_error, _unchanged, float),
    "cross-entropy": Loss(cross_entropy, Tensor.sigmoid, _logit),
    "ranking": Loss(ranking, _unchanged, lambda _: 0.0),
}
"""Losses by name."""
