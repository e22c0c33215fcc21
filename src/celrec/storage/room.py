"""How much of what is held for ids may be in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from celrec.errors import CelrecError
from celrec.storage.scratch_file import ScratchFile


class Held(Protocol):
    """Something that takes bytes, in memory or in a file."""

    @property
    def nbytes(self) -> int:
        """How many."""

    @property
    def mapped(self) -> bool:
        """Whether they are in a file."""


class Room:
    """A budget of bytes that several growing arrays share: see `GrowingRows`.

    The rule: an array that is made or grows is in memory if all those in memory, this one
    included, are within the budget then. Else it moves to a file of its own, and stays there. So
    what is in memory never exceeds the budget, and only what moves to a file is copied.

    >>> import numpy as np
    >>> from celrec.storage.growing_rows import GrowingRows
    >>> room = Room(budget=100)
    >>> few, many = (GrowingRows(np.dtype(np.int64), (), 6, room) for _ in range(2))
    >>> room.held, room.mapped
    (96, 0)
    >>> many.grow(7)
    >>> room.held, room.mapped
    (48, 56)
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        """None: all is in memory. Files lie on the disk of `folder`: see `ScratchFile`."""
        if budget is not None and budget < 0:
            raise CelrecError(f"memory must be a number of bytes, 0 or more, not {budget}")
        self.budget, self._folder = budget, folder
        self._inside: WeakSet[Held] = WeakSet()

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(one.nbytes for one in self._inside if not one.mapped)

    @property
    def mapped(self) -> int:
        """Bytes in files."""
        return sum(one.nbytes for one in self._inside if one.mapped)

    def enter(self, one: Held) -> None:
        """Count something, as long as anybody holds it."""
        self._inside.add(one)

    def admits(self, nbytes: int, *, instead_of: int = 0) -> bool:
        """Whether so many bytes can be in memory, if others that are there go away."""
        return self.budget is None or self.held - instead_of + nbytes <= self.budget

    def file(self) -> ScratchFile:
        """A new one, for what cannot."""
        return ScratchFile(self._folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> Room:
        """Without a budget: whoever copies what is in a file wants it in memory."""
        return Room()
