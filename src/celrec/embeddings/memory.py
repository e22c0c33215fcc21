"""How many bytes an embedding takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of rows and of what leads from an id to its row, never one without the other.

    >>> Memory(table=1024, index=4000)
    Memory(table=1024, index=4000)
    >>> Memory(table=1024, index=4000).total
    5024
    """

    table: int
    """The vectors."""
    index: int
    """Cluster maps, pointers, hash state, counts."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.table + self.index
