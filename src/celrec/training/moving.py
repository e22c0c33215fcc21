"""How ids find their clusters online."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from celrec.errors import CelrecError

SCHEDULES = ("always", "doubling")


@dataclass(frozen=True, slots=True)
class Moving:
    """When and how ids move between clusters, and clusters split."""

    latest: int = 20
    """By how many of its latest events an id is judged (n)."""
    candidates: int = 10
    """How many other clusters are tried, drawn at random (m)."""
    schedule: str = "doubling"
    """Which ids are judged: `always` all of a batch, at once; `doubling` those that have come to
    1, 2, 4, 8 … events, at the next look."""
    every: int = 1
    """How many events there are from one look to the next, each after a batch: then clusters that
    have come to too many events are split. An eighth of all events so far, where that is less."""
    prior: float = 1.0
    """What is added to the loss of a row: prior/2·‖row − mean row‖²."""
    limit: Callable[[int], float] | float = 100.0
    """d: a cluster with more than 2·d events is split; a number, or a function, which must not
    fall, of the events of all known ids, each counted once."""
    merge_within: float | None = None
    """When all rows are in use and a cluster is to be split, two rows that are no further apart
    than this become one, to make room; None: never."""
    own_row_above: float | None = None
    """An id with more events than this has a cluster to itself; None: no id has."""
    by_tangent: bool = True
    """Whether a network is judged by what its outputs are to first order in the vector, which takes
    one look at each event for all clusters that are tried, or by all of its outputs."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise CelrecError(
                f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}"
            )
        if not self.every >= 1:
            raise CelrecError(f"every must be 1 or more, not {self.every}")
        for name in ("latest", "candidates", "prior"):
            if not getattr(self, name) >= 0:
                raise CelrecError(f"{name} must not be negative, not {getattr(self, name)}")
