"""The best items among groups of items that score alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.inference.scores import UserScores
from celrec.inference.top_k_kernels import by_label, choose, sort_best

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


_MOST_ITEMS = 1 << 16  # whose vectors are there at once


class Best(NamedTuple):
    """The best items for each of those who asked, best first."""

    items: NDArray[np.int32]
    """(who asked, k): their numbers, −1 where there are fewer than k."""
    scores: NDArray[np.float32]
    """What is predicted for each, −∞ where there is none."""


class Skipped(NamedTuple):
    """Items that are no answer for those who ask: see `SeenItems.of`."""

    starts: NDArray[np.int64]
    items: NDArray[np.int32]


def search(
    asking: UserScores, groups: ItemGroups, rank: NDArray[np.int32], k: int, skipped: Skipped
) -> Best:
    """The k best items for all who ask; of equal ones those with the lower rank.

    The scores are those of the groups and what members add to them, not yet what is predicted.
    One block of groups is scored after the other. Of each, only members that are better than the
    worst of the best so far are looked at: the members of a group come in their order, so the
    first that is not ends it. Skipped items are passed over, however many there are.
    """
    count, first = len(skipped.starts) - 1, torch.from_numpy(groups.first.astype(np.int64))
    scores, items = np.empty((count, k)), np.empty((count, k), np.int32)
    filled = np.zeros(count, np.int64)
    mark = np.zeros(len(rank) if len(skipped.items) else 0, np.int32)
    step = max(min(asking.at_once // max(count, 1), _MOST_ITEMS), 1)
    for start in range(0, len(groups), step):
        some = slice(start, start + step)
        choose(
            asking.scores(first[some]).numpy(),
            groups.starts[start : start + step + 1],
            groups.members,
            groups.own,
            rank,
            *skipped,
            mark,
            scores,
            items,
            filled,
        )
    sort_best(scores, items, rank, filled)
    return Best(items, scores.astype(np.float32))
