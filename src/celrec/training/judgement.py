"""How training stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Judgement:
    """How training stood after some step."""

    step: int
    clusters: int
    """Rows of the items' table."""
    train_loss: float
    """The mean squared error on the training data, before the step."""
    valid_loss: float
    moved: int
    """Ids that changed their cluster since the last judgement."""
    user_clusters: int = 0
    """Rows of the users' table; 0 if an earlier version wrote it, which did not tell."""


Watcher: TypeAlias = Callable[[str, Judgement], None]
"""Is told of each judgement, and of the stage of training that it belongs to."""
