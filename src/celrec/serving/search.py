"""Finding the best items among groups that score alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.serving._top_k_kernels import choose, sort_best
from celrec.serving.item_groups import ItemGroups
from celrec.serving.user_scores import UserScores

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
