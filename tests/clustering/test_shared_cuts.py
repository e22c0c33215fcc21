"""Cuts of clusters whose members are spread over processes."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celrec.clustering.ranks import Ranks
from celrec.clustering.shared_cuts import shared_cuts
from celrec.clustering.shared_splits import Crowd, shared_splits
from celrec.clustering.split_methods import Members
from celrec.clustering.splitter import Splitter
from celrec.errors import DivergedError
from celrec.training._member_kernels import cut_clusters
from tests.clustering.fellow_ranks import together

DIM = 3


def crowds(draw):
    """Groups of members, of which each has a rank, some numbers of events and a number."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(2, 40), min_size=1, max_size=5))
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    ranks = draw(st.integers(1, 4))
    pulls = (
        rng.normal(size=(len(group), DIM)) * rng.choice([1e-6, 1.0, 1e6], len(sizes))[group, None]
    )
    pulls += rng.normal(size=(len(sizes), DIM))[group] * draw(st.sampled_from([0.0, 100.0]))
    skew = draw(st.sampled_from([1, 4]))
    counts = (1 + rng.pareto(1.0, len(group)) * skew).astype(np.int64).clip(1, 10_000)
    numbers = rng.choice(10**9, len(group), replace=False)
    owner = rng.integers(0, ranks, len(group)) if draw(st.booleans()) else np.zeros(len(group), int)
    return sizes, group, pulls, counts, numbers, owner, ranks


def cut_by(size, owner, work, *parts):
    """What all ranks say of their members, in the order of these."""
    places = [np.flatnonzero(owner == rank) for rank in range(size)]
    found = together(size, lambda ranks: work(*(one[places[ranks.rank]] for one in parts), ranks))
    whole = np.empty(len(owner), np.int64)
    for place, one in zip(places, found, strict=True):
        whole[place] = one[0]
    for one in found[1:]:
        for mine, others in zip(one[1:], found[0][1:], strict=True):
            np.testing.assert_array_equal(mine, others)  # what all know is the same
    return whole, found[0][1:]


def slow_scores(pulls):
    centred = pulls - pulls.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    direction = vectors[:, -1]
    direction = direction * np.sign(direction[np.abs(direction).argmax()])
    largest = np.sort(np.abs(direction))
    clear = values[-1] > 1.001 * values[-2] and largest[-1] > 1.001 * largest[-2]
    return centred @ direction, clear


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_processes_cut_as_one_that_sorts_all_scores(data):
    sizes, group, pulls, counts, numbers, owner, size = crowds(data.draw)
    leaving, (members, events) = cut_by(
        size,
        owner,
        lambda *told: shared_cuts(*told[:4], len(sizes), told[4]),
        *(group, pulls, counts, numbers),
    )
    for one in range(len(sizes)):
        here = np.flatnonzero(group == one)
        scores, clear = slow_scores(pulls[here])
        assume(clear and np.diff(np.sort(scores)).min() > 1e-9 * np.abs(scores).max())
        told = Members(torch.from_numpy(pulls[here]), torch.from_numpy(counts[here]))
        expected = Splitter(threshold="balanced").leaving(told, torch.Generator()).numpy()
        np.testing.assert_array_equal(leaving[here].astype(bool), expected)
        assert members[one] == (~expected).sum()
        assert events[one] == counts[here][~expected].sum()


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_members_who_are_alike_are_cut_by_their_numbers(data):
    sizes, group, pulls, counts, numbers, owner, size = crowds(data.draw)
    pulls = np.round(pulls[:, :1]) * 2.0 ** data.draw(st.integers(-300, 300))
    leaving, (members, events) = cut_by(
        size,
        owner,
        lambda *told: shared_cuts(*told[:4], len(sizes), told[4]),
        *(group, pulls, counts, numbers),
    )
    for one in range(len(sizes)):
        here = np.flatnonzero(group == one)
        order = here[np.lexsort((numbers[here], pulls[here, 0]))]
        uneven = [
            abs(int(counts[order[:at]].sum()) - int(counts[order[at:]].sum()))
            for at in range(1, len(order))
        ]
        staying = 1 + uneven.index(min(uneven))
        assert leaving[order].tolist() == [0] * staying + [1] * (len(order) - staying)
        assert (members[one], events[one]) == (staying, counts[order[:staying]].sum())


def test_equal_members_are_cut_in_the_middle_of_their_numbers():
    numbers = np.array([7, 10**12, 3, 5, 11, 2])
    group, pulls = np.zeros(6, np.int64), np.ones((6, DIM))
    cut = shared_cuts(group, pulls, np.ones(6, np.int64), numbers, 1, Ranks.alone())
    assert cut.leaving.tolist() == [True, True, False, False, True, False]


def test_scores_of_all_magnitudes_are_told_apart():
    pulls = -(10.0 ** -np.arange(60)[:, None])
    counts = np.ones(60, np.int64)
    counts[0] = 20  # so that the cut is among the small ones
    cut = shared_cuts(np.zeros(60, np.int64), pulls, counts, np.arange(60), 1, Ranks.alone())
    scores = pulls[:, 0] - pulls.mean()
    order = np.argsort(scores, kind="stable")
    assert cut.leaving[order].tolist() == [False] * 20 + [True] * 40


def test_what_is_sent_does_not_grow_with_the_members():
    def sent(members):
        rng = np.random.default_rng(0)
        pulls, owner = rng.normal(size=(members, DIM)), rng.integers(0, 2, members)

        def work(ranks):
            here = owner == ranks.rank
            counts, numbers = np.ones(members, np.int64)[here], np.arange(members)[here]
            shared_cuts(np.zeros(here.sum(), np.int64), pulls[here], counts, numbers, 1, ranks)
            return ranks.sent, ranks.messages

        return together(2, work)[0]

    for members in (200, 2_000, 200_000):
        size, messages = sent(members)
        rounds = messages - 2  # after those for means and moments
        assert size == 2 * 8 * (DIM + 2 + DIM**2 + rounds * 4 * 32)
        assert rounds <= 6


def test_gradients_that_are_not_finite_are_told_of_everywhere():
    def work(ranks):
        pulls = np.full((2, DIM), np.nan if ranks.rank else 1.0)
        with pytest.raises(DivergedError, match="finite"):
            shared_cuts(np.zeros(2, np.int64), pulls, np.ones(2, np.int64), np.arange(2), 1, ranks)

    together(2, work)


@given(st.data(), st.integers(1, 12), st.sampled_from([3.0, 20.0, 100.0]))
@settings(max_examples=80, deadline=None)
def test_processes_split_until_nobody_is_crowded_as_one_does(data, room, most):
    sizes, group, pulls, counts, numbers, owner, size = crowds(data.draw)
    clusters = np.array([10, 3, 7, 21, 2])[: len(sizes)]
    events = np.bincount(group, counts).astype(np.int64)
    fresh = 100 + np.arange(room)
    goals, (parents,) = cut_by(
        size,
        owner,
        lambda *told: shared_splits(
            clusters, np.array(sizes), events, Crowd(*told[:4]), most, fresh, told[4]
        ),
        *(group, pulls, counts, numbers),
    )
    order = np.argsort(group, kind="stable")
    ends = np.concatenate([[0], np.cumsum(sizes)])
    expected, of_one = cut_clusters(clusters, ends, pulls[order], counts[order], most, fresh)
    left = {int(name): np.flatnonzero(goals == name) for name in np.unique(goals)}
    assert set(left) == {*clusters.tolist(), *fresh[: len(parents)].tolist()}
    if len(parents) < room:
        assert all(len(one) == 1 or counts[one].sum() <= most for one in left.values())
    if clear_all_the_way(goals[order], pulls[order], clusters, parents, fresh):
        np.testing.assert_array_equal(goals[order], expected)
        np.testing.assert_array_equal(parents, of_one)


def clear_all_the_way(goals, pulls, clusters, parents, fresh):
    """Whether no cut was a matter of rounding."""
    whole = {int(name): {int(name)} for name in (*clusters, *fresh[: len(parents)])}
    for parent, name in reversed(list(zip(parents.tolist(), fresh.tolist(), strict=False))):
        some = pulls[np.isin(goals, [*whole[parent], *whole[name]])]
        scores, clear = slow_scores(some)
        if not clear or np.diff(np.sort(scores)).min() <= 1e-9 * np.abs(scores).max():
            return False
        whole[parent] |= whole[name]
    return True
