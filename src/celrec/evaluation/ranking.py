"""How well recommended items are chosen, overall and for cold and warm items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from celrec.config.plan import Plan
from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError
from celrec.evaluation.metrics import COLD_LIMIT


@dataclass(frozen=True, slots=True)
class Ranking:
    """How many of the items that users came to like are among the k that they were recommended.

    Means over all users who came to like any; None where nobody did.

    >>> import celrec
    >>> test = celrec.read({"user": [1, 1, 2], "item": [5, 6, 7], "rating": [5.0, 4.0, 2.0]})
    >>> lists = np.array([[2, 1], [0, 1]])
    >>> found = Ranking.by_slice(lists, [0, 1], test, test.item_counts, relevant_from=3.0)
    >>> found["all"]
    Ranking(users=1, ndcg=0.38685280723454163, recall=0.5, mrr=0.5, hit_rate=1.0, coverage=1.0)
    """

    users: int
    """How many came to like any."""
    ndcg: float | None
    """Σ_{places p of hits} 1/log₂(p + 1), over the most that it could be."""
    recall: float | None
    """The share of what a user came to like that was recommended."""
    mrr: float | None
    """1/p for the first place p with a hit, 0 without any."""
    hit_rate: float | None
    """The share of users with a hit."""
    coverage: float | None
    """The share of all items that were recommended to anybody."""

    @classmethod
    def by_slice(
        cls,
        recommended: ArrayLike,
        users: ArrayLike,
        test: Interactions,
        item_counts: NDArray[np.int64],
        *,
        relevant_from: float | None = None,
        seen: SeenItems | None = None,
    ) -> dict[str, Ranking]:
        """Of `all` items, and of `cold` and `warm` ones by their training interactions.

        `recommended` has a row of k items for each of the `users`, best first, −1 where there are
        fewer. What a user came to like are the items of the rows of `test` with targets from
        `relevant_from` on, or of all rows if None: each item once, and without those that the user
        has `seen`, since these are not recommended. An item that the model does not know is one
        that it cannot find, and cold; rows of other users do not count. In a slice, only its own
        items count, at the places that they have among all.
        """
        lists, who = np.asarray(recommended), np.asarray(users)
        if lists.ndim != 2 or len(lists) != len(who):
            raise CelrecError(
                f"recommended must have a row for each of {len(who):,} users, not {lists.shape}"
            )
        if len(np.unique(who)) < len(who):
            raise CelrecError("users: there are some twice; ask for each once")
        size = max(len(item_counts), 1)
        place, item = _liked(who, test, relevant_from)
        known = item >= 0
        liked = np.unique(place[known] * size + item[known])
        if seen is not None:
            starts, before = seen.of(who)
            owner = np.repeat(np.arange(len(who)), np.diff(starts))
            liked = liked[~np.isin(liked, owner * size + before)]
        unknown = np.bincount(place[~known], minlength=len(who))
        warm = item_counts > COLD_LIMIT
        every, nobody = np.ones(len(item_counts), bool), np.zeros_like(unknown)
        slices = {"all": (every, unknown), "cold": (~warm, unknown), "warm": (warm, nobody)}
        return {
            name: cls._of(lists, liked[own[liked % size]], own, missed)
            for name, (own, missed) in slices.items()
        }

    @classmethod
    def _of(
        cls,
        lists: NDArray[np.integer],
        liked: NDArray[np.int64],
        own: NDArray[np.bool_],
        missed: NDArray[np.int64],
    ) -> Ranking:
        """Of the items in a mask, given pairs of users and liked items, and numbers of unknown."""
        size = max(len(own), 1)
        total = np.bincount(liked // size, minlength=len(lists)) + missed
        shown = np.unique(lists[lists >= 0])
        coverage = float(own[shown].sum() / own.sum()) if own.any() else None
        who = np.flatnonzero(total)
        if not len(who):
            return cls(0, None, None, None, None, coverage)
        k, place = lists.shape[1], np.arange(1, lists.shape[1] + 1)
        hit = np.isin(who[:, None] * size + lists[who], liked) & (lists[who] >= 0)
        gain = 1 / np.log2(place + 1)
        most = np.cumsum(gain)[np.minimum(total[who], k) - 1]
        return cls(
            users=len(who),
            ndcg=float(np.mean(hit @ gain / most)),
            recall=float(np.mean(hit.sum(1) / total[who])),
            mrr=float(np.mean((hit / place).max(1))),
            hit_rate=float(np.mean(hit.any(1))),
            coverage=coverage,
        )


def _liked(
    users: NDArray[np.integer], test: Interactions, relevant_from: float | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of all that users came to like, the place of the user, and the item."""
    order = np.argsort(users)
    place = np.searchsorted(users[order], test.user)
    place = order[np.minimum(place, len(users) - 1)] if len(users) else np.zeros(len(test), int)
    rows = np.isin(test.user, users) & (test.user >= 0)
    if relevant_from is not None:
        rows &= test.target >= relevant_from
    return place[rows].astype(np.int64), test.item[rows].astype(np.int64)


def relevant_from(plan: Plan, test: Interactions, mean: float) -> float | None:
    """The target from which on an item of `test` counts as liked; None: all of them do.

    Trained on what happened only, a model knows of interactions only, and all of them count. Of
    targets 0 and 1 a 1 does; a rating does if it is as high as the plan's `positive`, or as the
    `mean` of all ratings.

    >>> import celrec
    >>> ratings = celrec.read({"user": [1, 2], "item": [5, 6], "rating": [5.0, 2.0]})
    >>> relevant_from(Plan(), ratings, 3.5)
    3.5
    """
    if plan.only_positive:
        return None
    if np.isin(test.target, (0, 1)).all():
        return 1.0
    return mean if plan.positive is None else plan.positive
