"""All that is measured of one way to predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """How well test data are predicted, and test items found; ready for JSON."""

    test: dict[str, float | None]
    """As `measure` has it, and `log_loss` where targets are 0 and 1 and predictions between."""
    ranking: dict[str, float | None] | None
    """As `Ranking` has it, by metric; None if nothing could be recommended."""
    by_items: list[float | None]
    """The page's metric by the training interactions of the item."""
    by_users: list[float | None]
    """The same for the user."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Figures:
        """What `as_dict` gave."""
        return cls(**{name: kept[name] for name in cls.__dataclass_fields__})
