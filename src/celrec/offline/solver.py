"""What moves the rows and all else that is learned, and how training stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from torch.optim import Optimizer

from celrec.cel.evidence import Evidence
from celrec.data.interactions import Interactions


class Solver(ABC):
    """Steps that lower the loss of a recommender on a log."""

    moves_clusters: ClassVar[bool] = False
    """Whether its steps split clusters and move ids themselves."""
    optimizer: Optimizer | None = None
    """Where state about single rows is kept that a split has to copy, if anywhere."""

    @abstractmethod
    def start(self, seed: int) -> None:
        """Give the recommender what it begins with."""

    @abstractmethod
    def step(self) -> float:
        """Take one step; the loss before it, without penalties, summed over the log."""

    @abstractmethod
    def evidence(self, side: str) -> Evidence:
        """What the clusters of one side can be judged by."""

    @abstractmethod
    def loss(self, log: Interactions) -> float:
        """The mean loss on data that are not trained on."""

    def meet(self) -> None:  # noqa: B027  (where one process does all, there is nothing to do)
        """Let all processes that train together have the same model."""

    def averaged(self) -> AbstractContextManager[None]:
        """Within it, the recommender is as it is to be judged and left."""
        return nullcontext()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on and the recommender does not hold."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""


@dataclass(frozen=True, slots=True)
class ValidationRecord:
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


Watcher: TypeAlias = Callable[[str, ValidationRecord], None]
"""Is told of each judgement, and of the stage of training that it belongs to."""
