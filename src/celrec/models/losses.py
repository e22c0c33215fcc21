"""Loss functions per sample, and their link functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor


class Loss(NamedTuple):
    """A loss per sample, and the link between model outputs and predictions."""

    of_samples: Callable[[Tensor, Tensor], Tensor]
    """The loss of outputs and targets, with shapes that can be broadcast."""
    prediction: Callable[[Tensor], Tensor]
    """The predictions of outputs, on the scale of the targets."""
    output: Callable[[float], float]
    """The best constant output for targets with the given mean."""
    pairwise: bool = False
    """Whether it compares an interaction with another item, in place of a target."""
    binary: bool = False
    """Whether targets must be 0 or 1."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Loss:
        """Itself: a model that is copied keeps its loss."""
        return self


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """(y − x)² per sample."""
    return (output - target).square()


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """−x·log σ(y) − (1 − x)·log(1 − σ(y)) per sample, for logits y."""
    return F.softplus(output) - target * output


def ranking(margin: Tensor, target: Tensor) -> Tensor:
    """−log σ(y − y′) per pair, for margins y − y′ (BPR)."""
    del target
    return F.softplus(-margin)


def rating_and_conversion(positive: float) -> Loss:
    """Two tasks along the last axis: squared error, plus cross-entropy of x ≥ `positive`.

    The prediction is the first task's, the rating.
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
    "cross-entropy": Loss(cross_entropy, Tensor.sigmoid, _logit, binary=True),
    "ranking": Loss(ranking, _unchanged, lambda _: 0.0, pairwise=True),
}
"""Losses by name."""
