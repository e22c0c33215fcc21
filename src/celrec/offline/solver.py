"""The interface of solvers, and the records of validation."""

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
    """An optimiser of a model on a log, one step after the other."""

    moves_clusters: ClassVar[bool] = False
    """Whether steps also split clusters and reassign ids."""
    optimizer: Optimizer | None = None
    """The optimiser whose per-row state a split has to copy, if there is one."""

    @abstractmethod
    def start(self, seed: int) -> None:
        """Initialise the parameters of the model."""

    @abstractmethod
    def step(self) -> float:
        """Take one step; return the loss before it, summed over the log, without penalties."""

    @abstractmethod
    def evidence(self, side: str) -> Evidence:
        """Gradients and losses of the ids of a table, for splits and reassignment."""

    @abstractmethod
    def loss(self, log: Interactions) -> float:
        """The mean loss on a log that is not trained on."""

    def meet(self) -> None:  # noqa: B027  (where one process does all, there is nothing to do)
        """Make the model the same on all ranks."""

    def averaged(self) -> AbstractContextManager[None]:
        """Within it, the model has the parameters to validate and to return, such as averages."""
        return nullcontext()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on besides the model."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


@dataclass(frozen=True, slots=True)
class ValidationRecord:
    """The state of training after a step."""

    step: int
    clusters: int
    """Rows of the items' table."""
    train_loss: float
    """The mean squared error on the training data, before the step."""
    valid_loss: float
    moved: int
    """Ids that changed their cluster since the last validation."""
    user_clusters: int = 0
    """Rows of the users' table; 0 in records of earlier versions."""


Watcher: TypeAlias = Callable[[str, ValidationRecord], None]
"""Called with the stage of training and each of its validation records."""
