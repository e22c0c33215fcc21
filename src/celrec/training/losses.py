"""What a wrong prediction costs."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor


def squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """(y − x)² for each sample."""
    return (predicted - target).square()


def cross_entropy(logit: Tensor, target: Tensor) -> Tensor:
    """−x·log σ(y) − (1 − x)·log(1 − σ(y)) for each sample, y being a logit."""
    target = target.expand_as(logit)
    return F.binary_cross_entropy_with_logits(logit, target, reduction="none")


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared-error": squared_error,
    "cross-entropy": cross_entropy,
}
"""Losses by name."""


def ranking_loss(better: Tensor, worse: Tensor) -> Tensor:
    """−log σ(y − y′): the better one of a pair is to score higher (BPR)."""
    return F.softplus(worse - better)
