"""Cutting clusters in two whose members are spread over processes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.clustering.ranks import Ranks
from celrec.errors import DivergedError

_BINS = 32
_WIDTH = 3.0  # standard deviations that the first bins reach to on both sides

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


class Cuts(NamedTuple):
    """How groups were cut in two."""

    leaving: NDArray[np.bool_]
    """Which of the members here leave."""
    members: Ints
    """How many stay in each group, in all processes together."""
    events: Ints
    """How many events those have."""


def shared_cuts(
    group: Ints, pulls: Doubles, counts: Ints, numbers: Ints, groups: int, ranks: Ranks
) -> Cuts:
    """Who leaves, where each of some groups is cut in two.

    As `Splitter(threshold="balanced")` does: along the first principal component of the pulls,
    so that both sides have as equal numbers of events as a cut allows; ties are cut by numbers.
    `group` tells the group of each member here, from 0, and `numbers` differ among all members
    everywhere. Each group must have two members or more in all processes together. All of these
    take part, with what they have.

    In a group of n members in all, with R numbers in a pull x,

        mean = Σx/n,  moments = Σ(x − mean)(x − mean)ᵀ,  score = (x − mean)·(top eigenvector),

    and the cut is found in histograms of scores, ever finer around it. So what each process sends
    to each other one is 8·(R + 2), 8·R² and then some times 8·4·32 bytes for a group, however
    many members it has.

    >>> pulls = np.array([[1.0], [2.0], [9.0], [5.0], [5.0]])
    >>> group, counts = np.array([0, 0, 0, 1, 1]), np.ones(5, np.int64)
    >>> leaving, members, events = shared_cuts(group, pulls, counts, np.arange(5), 2, Ranks.alone())
    >>> leaving, members
    (array([False,  True,  True, False,  True]), array([1, 1]))
    """
    sums = _summed(group, np.column_stack([pulls, np.ones(len(group)), counts]), groups)
    sums = ranks.total(torch.from_numpy(sums)).numpy()
    members, events = sums[:, -2], sums[:, -1]
    centred = pulls - (sums[:, :-2] / members[:, None])[group]
    products = centred[:, :, None] * centred[:, None, :]
    moments = ranks.total(torch.from_numpy(_summed(group, products, groups)))
    if not bool(moments.isfinite().all()):
        raise DivergedError(
            "gradients must be finite; lower the learning rate if training diverged"
        )
    values, vectors = (part.numpy() for part in torch.linalg.eigh(moments))
    directions = vectors[:, :, -1]
    largest = np.abs(directions).argmax(1)
    directions *= np.sign(directions[np.arange(groups), largest])[:, None]
    scores = (centred * directions[group]).sum(1)
    reach = _WIDTH * np.sqrt(np.maximum(values[:, -1], 0) / members)
    search = _Search(group, scores, counts, numbers, members, events, reach)
    while search.look(ranks):
        pass
    return Cuts(search.leaving, *search.staying.astype(np.int64).T)


class _Search:
    """Looks for the member of each group with whom half of its events are reached.

    In a group, members are in the order of their scores, then of their numbers. Around that one
    member there are bins; those of the one that it is in are put in bins again.
    """

    def __init__(
        self,
        group: Ints,
        scores: Doubles,
        counts: Ints,
        numbers: Ints,
        members: Doubles,
        events: Doubles,
        reach: Doubles,
    ) -> None:
        self.leaving = np.zeros(len(group), np.bool_)
        self.staying = np.zeros((len(members), 2))
        """(groups, 2): members before those that are in question, in the end all who stay, and
        their events."""
        self._group, self._scores, self._counts = group, scores, counts
        self._numbers = numbers.astype(np.float64)
        self._members, self._events = members, events
        self._low, self._high = -reach, reach.copy()
        self._by_number = np.zeros(len(members), np.bool_)
        self._open = np.ones(len(members), np.bool_)
        """Groups whose cut is not found yet."""
        self._within = np.ones(len(group), np.bool_)
        """Members that may be the one that is sought."""

    def look(self, ranks: Ranks) -> bool:
        """One message to each; whether there is more to look for."""
        groups, which = len(self._members), np.flatnonzero(self._within)
        group = self._group[which]
        keys = np.where(self._by_number[group], self._numbers[which], self._scores[which])
        low, wide = self._low[group], (self._high - self._low)[group]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            place = np.nan_to_num(np.floor((keys - low) / wide * _BINS), nan=0.0)
        place = group * _BINS + np.clip(place, 0, _BINS - 1).astype(np.int64)
        found = self._told(place, keys, which, ranks)
        before = self.staying[:, None] + found[:, :, :2].cumsum(1)
        half = 2 * before[:, :, 1] >= self._events[:, None]
        chosen = np.where(self._open, half.argmax(1), 0)  # the first that reaches it
        every = np.arange(groups)
        members, events, low, high = found[every, chosen].T
        self.staying[:, 0] = before[every, chosen, 0] - members
        self.staying[:, 1] = before[every, chosen, 1] - events
        # Who comes behind leaves; who comes before is out of it.
        here = place - group * _BINS
        self.leaving[which[here > chosen[group]]] = True
        self._within[which[here != chosen[group]]] = False
        self._low, self._high = low, high
        done = self._open & (members == 1)
        self._settle(done, events)
        self._open &= ~done
        with np.errstate(invalid="ignore"):  # of groups that are done
            tied = self._open & ~(high - low > 0)
        if tied.any():
            self._go_by_numbers(tied, ranks)
        return bool(self._open.any())

    def _told(self, place: Ints, keys: Doubles, which: Ints, ranks: Ranks) -> Doubles:
        """(groups, bins, 4): members, events, lowest and highest key, over all processes."""
        bins = len(self._members) * _BINS
        mine = np.empty((bins, 4))
        mine[:, 0] = np.bincount(place, minlength=bins)
        mine[:, 1] = np.bincount(place, self._counts[which], minlength=bins)
        mine[:, 2], mine[:, 3] = np.inf, -np.inf
        np.minimum.at(mine[:, 2], place, keys)
        np.maximum.at(mine[:, 3], place, keys)
        told = ranks.stacked(torch.from_numpy(mine)).numpy()
        found = np.column_stack([told[:, :, :2].sum(0), told[:, :, 2].min(0), told[:, :, 3].max(0)])
        return found.reshape(-1, _BINS, 4)

    def _go_by_numbers(self, tied: NDArray[np.bool_], ranks: Ranks) -> None:
        """From now on, in groups where the scores of all who are left are the same."""
        self._by_number |= tied
        which = np.flatnonzero(self._within & tied[self._group])
        ends = np.full((2, len(tied)), np.inf)
        np.minimum.at(ends[0], self._group[which], self._numbers[which])
        np.minimum.at(ends[1], self._group[which], -self._numbers[which])
        ends = ranks.stacked(torch.from_numpy(ends)).amin(0).numpy()
        self._low = np.where(tied, ends[0], self._low)
        self._high = np.where(tied, -ends[1], self._high)

    def _settle(self, done: NDArray[np.bool_], events: Doubles) -> None:
        """Let the member that was found stay or leave, in the groups where there is one."""
        fewer, total = self.staying[:, 1], self._events
        # If both are as even, fewer stay; but one stays at least, and one leaves.
        leaves = np.abs(2 * fewer - total) <= np.abs(2 * (fewer + events) - total)
        leaves = (leaves | (self.staying[:, 0] == self._members - 1)) & (self.staying[:, 0] > 0)
        which = np.flatnonzero(self._within & done[self._group])
        self.leaving[which] = leaves[self._group[which]]
        self._within[which] = False
        stays = done & ~leaves
        self.staying[stays] += np.column_stack([np.ones(len(events)), events])[stays]


def _summed(group: Ints, values: Doubles, groups: int) -> Doubles:
    """(groups, …): the sums of the rows of each group."""
    found = np.zeros((groups, *values.shape[1:]))
    np.add.at(found, group, values)
    return found
