"""Ids that wait for something."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Waiting:
    """Ids come, perhaps again and again, until all are asked for.

    >>> waiting = Waiting()
    >>> waiting.add(np.array([4, 7]))
    >>> waiting.add(np.array([1, 4]))
    >>> waiting.taken(), waiting.all()
    (array([1, 4, 7]), array([], dtype=int64))
    """

    def __init__(self, ids: NDArray[np.int64] | None = None) -> None:
        """`ids` ascend, each once."""
        self._parts = [] if ids is None else [ids]

    def __bool__(self) -> bool:
        """Whether any have come since all were taken."""
        return bool(self._parts)

    def add(self, ids: NDArray[np.int64]) -> None:
        """They ascend, each once."""
        self._parts.append(ids)

    def all(self) -> NDArray[np.int64]:
        """The different ids, in ascending order."""
        if len(self._parts) == 1:
            return self._parts[0]
        return np.unique(np.concatenate([np.empty(0, np.int64), *self._parts]))

    def taken(self) -> NDArray[np.int64]:
        """The same, and none is waiting any more."""
        ids = self.all()
        self._parts = []
        return ids

    def keep(self, ids: NDArray[np.int64]) -> None:
        """Let only these remain of all ids, which ascend, numbered anew from 0."""
        self._parts = [np.flatnonzero(np.isin(ids, self.all()))]
