"""What users think of items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor


class UserScores(ABC):
    """Some users, ready to score any items."""

    at_once: ClassVar[int]
    """How many pairs of users and items may be scored at once: so memory is bounded."""

    @abstractmethod
    def scores(self, items: Tensor) -> Tensor:
        """(users, items): the higher, the better, in the order of what is predicted.

        What depends on the user alone, or on the item's own bias alone, may be left out.
        """

    @abstractmethod
    def told(self, scores: Tensor) -> Tensor:
        """(users, any): what is predicted, on the scale of the targets, given complete scores."""
