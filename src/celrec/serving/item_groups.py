"""Items that score alike, together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from celrec.serving._top_k_kernels import by_label

_NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class ItemGroups:
    """Groups of items, and the order of the members of each: the best first.

    >>> groups = ItemGroups.of(np.array([5, 2, 5, 5]), order=np.array([3, 1, 0, 2], np.int32))
    >>> groups.members, groups.starts
    (array([1, 3, 0, 2], dtype=int32), array([0, 1, 4]))
    >>> groups.only(np.array([True, False, True, False])).members
    array([0, 2], dtype=int32)
    """

    starts: NDArray[np.int64]
    """Where each group begins in `members`, and where the last one ends; none is empty."""
    members: NDArray[np.int32]
    own: NDArray[np.float32]
    """What each member adds to the score of its group; empty where none does."""

    @classmethod
    def of(
        cls,
        labels: NDArray[np.int64],
        order: NDArray[np.int32],
        own: NDArray[np.float32] | None = None,
    ) -> ItemGroups:
        """Items with equal labels; those with more of their `own` first, then in the `order`."""
        if own is not None:
            order = order[np.argsort(-own[order], kind="stable")]
        starts = np.zeros(int(labels.max(initial=-1)) + 2, np.int64)
        np.cumsum(np.bincount(labels), out=starts[1:])
        members = by_label(labels, order, starts)
        return cls(_distinct(starts), members, _NOTHING if own is None else own[members])

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.starts) - 1

    @property
    def first(self) -> NDArray[np.int32]:
        """The first member of each group."""
        return self.members[self.starts[:-1]]

    def only(self, kept: NDArray[np.bool_]) -> ItemGroups:
        """Without the items for which the mask is false."""
        stay = kept[self.members]
        before = np.concatenate([[0], np.cumsum(stay)])
        own = self.own[stay] if len(self.own) else self.own
        return ItemGroups(_distinct(before[self.starts]), self.members[stay], own)


def _distinct(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Without groups that are empty."""
    distinct: NDArray[np.int64] = starts[np.concatenate([[True], np.diff(starts) > 0])]
    return distinct
