"""Search for the best items among groups of items with equal scores."""

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
    """Groups of items with equal scores, and the order of the members within each group.

    >>> groups = ItemGroups.of(np.array([5, 2, 5, 5]), order=np.array([3, 1, 0, 2], np.int32))
    >>> groups.members, groups.starts
    (array([1, 3, 0, 2], dtype=int32), array([0, 1, 4]))
    >>> groups.only(np.array([True, False, True, False])).members
    array([0, 2], dtype=int32)
    """

    starts: NDArray[np.int64]
    """(groups + 1): offsets of the groups in `members`; no group is empty."""
    members: NDArray[np.int32]
    own: NDArray[np.float32]
    """What each member adds to the score of its group, such as a bias; empty if nothing."""

    @classmethod
    def of(
        cls,
        labels: NDArray[np.int64],
        order: NDArray[np.int32],
        own: NDArray[np.float32] | None = None,
    ) -> ItemGroups:
        """Group items by label. Members are sorted by `own`, highest first, then as in `order`."""
        if own is not None:
            order = order[np.argsort(-own[order], kind="stable")]
        starts = np.zeros(int(labels.max(initial=-1)) + 2, np.int64)
        np.cumsum(np.bincount(labels), out=starts[1:])
        members = by_label(labels, order, starts)
        return cls(_distinct(starts), members, _NOTHING if own is None else own[members])

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.starts) - 1

    @property
    def first(self) -> NDArray[np.int32]:
        """The first member of each group."""
        return self.members[self.starts[:-1]]

    def only(self, kept: NDArray[np.bool_]) -> ItemGroups:
        """The groups without the items for which the mask is false."""
        stay = kept[self.members]
        before = np.concatenate([[0], np.cumsum(stay)])
        own = self.own[stay] if len(self.own) else self.own
        return ItemGroups(_distinct(before[self.starts]), self.members[stay], own)


def _distinct(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The offsets without those of empty groups."""
    distinct: NDArray[np.int64] = starts[np.concatenate([[True], np.diff(starts) > 0])]
    return distinct


_MOST_ITEMS = 1 << 16  # items per block, which bounds the memory for their vectors


class Best(NamedTuple):
    """The best items per query (a user or an item), best first."""

    items: NDArray[np.int32]
    """(queries, k): item numbers, −1 where there are fewer than k."""
    scores: NDArray[np.float32]
    """(queries, k): predictions, −∞ where there is no item."""


class Skipped(NamedTuple):
    """Items to leave out per query, as offsets and item numbers (CSR), like `SeenItems.of`."""

    starts: NDArray[np.int64]
    items: NDArray[np.int32]


def search(
    queries: UserScores, groups: ItemGroups, rank: NDArray[np.int32], k: int, skipped: Skipped
) -> Best:
    """The k best items per query; ties are broken by the lower rank.

    Scores are raw scores (group plus own part), not predictions yet. Groups are scored block by
    block. Members of a group are sorted, so a group is left at the first member that is worse
    than the k-th best so far. Skipped items are passed over, however many there are.
    """
    count, first = len(skipped.starts) - 1, torch.from_numpy(groups.first.astype(np.int64))
    scores, items = np.empty((count, k)), np.empty((count, k), np.int32)
    filled = np.zeros(count, np.int64)
    mark = np.zeros(len(rank) if len(skipped.items) else 0, np.int32)
    step = max(min(queries.at_once // max(count, 1), _MOST_ITEMS), 1)
    for start in range(0, len(groups), step):
        some = slice(start, start + step)
        choose(
            queries.scores(first[some]).numpy(),
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
