from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.evaluation.cluster_diagnostics import adjusted_rand_index

labels = st.integers(-3, 3)
two_labelings = st.lists(st.tuples(labels, labels), min_size=1, max_size=12).map(
    lambda pairs: tuple(map(list, zip(*pairs, strict=True)))
)


def reference(first, second):
    pairs = list(combinations(range(len(first)), 2))
    together_first = sum(first[i] == first[j] for i, j in pairs)
    together_second = sum(second[i] == second[j] for i, j in pairs)
    both = sum(first[i] == first[j] and second[i] == second[j] for i, j in pairs)
    if all((first[i] == first[j]) == (second[i] == second[j]) for i, j in pairs):
        return 1.0
    expected = together_first * together_second / len(pairs)
    return (both - expected) / ((together_first + together_second) / 2 - expected)


@given(two_labelings)
def test_pairs_are_counted(labelings):
    assert adjusted_rand_index(*labelings) == pytest.approx(reference(*labelings), abs=1e-12)


@given(two_labelings)
def test_neither_labeling_comes_first(labelings):
    first, second = labelings
    assert adjusted_rand_index(first, second) == adjusted_rand_index(second, first)


@given(two_labelings, st.permutations(range(-3, 4)), st.integers(-(2**40), 2**40))
def test_names_of_labels_and_the_order_of_things_do_not_matter(labelings, names, shift):
    first, second = labelings
    renamed = [names[label + 3] * 1000 + shift for label in first]
    index = adjusted_rand_index(first, second)
    assert adjusted_rand_index(renamed, second) == index
    assert adjusted_rand_index(renamed[::-1], second[::-1]) == index
    assert adjusted_rand_index(renamed, first) == 1


def test_an_index_by_hand():
    # Contingency 2 0 0 / 1 1 0 / 0 1 1 of 6 things: c = 1, a = 3, b = 3 + 1 = 4, t = 15.
    first, second = [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2]
    assert adjusted_rand_index(first, second) == pytest.approx((1 - 12 / 15) / (3.5 - 12 / 15))


@pytest.mark.parametrize("labels", [[5], [4, 4, 4], [1, 2, 3], [9, 9, 1]])
def test_equal_partitions_agree_fully_even_if_trivial(labels):
    assert adjusted_rand_index(labels, [-label for label in labels]) == 1


def test_one_cluster_tells_nothing_of_singletons():
    assert adjusted_rand_index([0, 0, 0], [0, 1, 2]) == 0


def test_extreme_labels_are_told_apart():
    labels = np.array([-(2**63), -(2**63), 2**63 - 1, 0])
    assert adjusted_rand_index(labels, [0, 0, 1, 2]) == 1
    assert adjusted_rand_index(np.array([2**64 - 1, 0, 0], np.uint64), [0, 1, 1]) == 1


def test_arrays_tensors_and_narrow_integers_are_taken():
    first = np.arange(1000) % 250
    assert adjusted_rand_index(first.astype(np.uint8), torch.from_numpy(first)) == 1


def test_many_things_with_many_labels_are_counted_exactly():
    n = 3_000_000  # the product of the numbers of pairs has 26 digits
    first = np.arange(n) // 2
    assert adjusted_rand_index(first, first) == 1
    coarse = np.arange(n) // (n // 2)
    pairs, halves = n // 2, 2 * (n // 2 * (n // 2 - 1) // 2)
    total = n * (n - 1) // 2
    exact = 2 * (total * pairs - pairs * halves) / (total * (pairs + halves) - 2 * pairs * halves)
    assert adjusted_rand_index(first, coarse) == exact


def test_independent_labelings_agree_by_chance_alone():
    rng = np.random.default_rng(0)
    indices = [adjusted_rand_index(*rng.integers(5, size=(2, 2000))) for _ in range(20)]
    assert abs(np.mean(indices)) < 1e-3


def test_the_more_things_are_moved_the_less_labelings_agree():
    first = np.arange(100) % 4
    moved = [np.where(np.arange(100) < n, (first + 1) % 4, first) for n in (0, 10, 20, 30)]
    assert all(
        adjusted_rand_index(first, one) > adjusted_rand_index(first, two)
        for one, two in pairwise(moved)
    )


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([], [], "at least one, not 0 and 0"),
        ([1, 2], [1], "not 2 and 1"),
        ([1, 2], [0.5, 1.0], "second must be a list of integers, not float64"),
        ([[1, 2]], [[1, 2]], r"first must be a list of integers, not int64 of shape \(1, 2\)"),
        (3, 3, "first must be a list"),
    ],
)
def test_what_does_not_label_the_same_things_is_refused(first, second, message):
    with pytest.raises(CelrecError, match=message):
        adjusted_rand_index(first, second)
