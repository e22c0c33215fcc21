"""Samples to train on or to predict."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Some interactions, and what their users did before."""

    user: Tensor
    item: Tensor
    target: Tensor
    history: Tensor | None = None
    """(..., length): the items before, oldest first, negative where there was none."""
    weight: Tensor | None = None
    """How many interactions a sample stands for; one if None."""
    columns: Tensor | None = None
    """(..., columns): the ids in further columns of the log."""
    worse: Tensor | None = None
    """An item that is to score lower than `item`."""
    not_next: Tensor | None = None
    """(..., length): for each item of the history one that did not come there."""
