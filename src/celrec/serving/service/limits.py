"""How much a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from celrec.errors import CelrecError

MOST_ANSWERS = 1_000
"""The largest k."""
MOST_ROWS = 10_000
"""Events, pairs or items in a request, at most."""
MOST_USERS = 1_000
"""In a request."""
LONGEST_ID = 512
"""Characters of an id."""
LARGEST_TARGET = 1e6
"""Far from all others, a single target could spoil what was learned."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator may set."""

    body: int = 1 << 20
    """Bytes of a request, however it is sent."""
    body_seconds: float = 30.0
    """Within which a body must have come."""
    threads: int = 2
    """Longer answers that are worked on at the same time."""

    def __post_init__(self) -> None:
        if self.body < 1024:
            raise CelrecError(f"max_body (--max-body) must be at least 1024 bytes, not {self.body}")
        if self.threads < 1:
            raise CelrecError(f"threads (--threads) must be at least 1, not {self.threads}")
