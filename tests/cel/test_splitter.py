import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from celrec import CelrecError
from celrec.cel.criteria import THRESHOLDS
from celrec.cel.split import NORMALISATIONS, SPLIT_METHODS, Members, Splitter, choose_cluster

splitters = st.builds(
    Splitter,
    method=st.sampled_from(sorted(SPLIT_METHODS)),
    normalisation=st.sampled_from(sorted(NORMALISATIONS)),
    threshold=st.sampled_from(sorted(THRESHOLDS)),
)
numbers = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, 0.1, -1.0])
gradients = arrays.arrays(
    np.float32,
    st.tuples(st.integers(2, 9), st.integers(1, 4)),
    elements=numbers,
    fill=st.just(0.1),
)


@given(splitters, gradients, st.data())
def test_neither_side_is_ever_empty(splitter, pull, data):
    counts = st.lists(st.integers(0, 100), min_size=len(pull), max_size=len(pull))
    members = Members(
        torch.from_numpy(pull), torch.tensor(data.draw(counts)), torch.from_numpy(pull).flip(1)
    )
    leaving = splitter.leaving(members, torch.Generator().manual_seed(data.draw(st.integers(0, 9))))
    assert leaving.dtype == torch.bool
    assert leaving.shape == (len(pull),)
    assert 0 < int(leaving.sum()) < len(pull)


@given(splitters, st.integers(2, 9), st.sampled_from([0.0, 0.1, -7.0]))
def test_members_that_cannot_be_told_apart_are_halved(splitter, size, value):
    pull = torch.full((size, 3), value)
    members = Members(pull, torch.ones(size), pull)
    leaving = splitter.leaving(members, torch.Generator())
    if splitter.method != "random":
        assert int(leaving.sum()) == size - size // 2
    assert 0 < int(leaving.sum()) < size


def test_by_default_members_are_parted_by_the_centred_first_component():
    pull = torch.randn(30, 4, generator=torch.Generator().manual_seed(1)) + 5
    members = Members(pull, torch.ones(30))
    centred = pull.double().numpy() - pull.double().numpy().mean(0)
    direction = np.linalg.svd(centred)[2][0]
    positive = centred @ direction >= 0
    leaving = Splitter().leaving(members, torch.Generator()).numpy()
    assert np.array_equal(leaving, positive) or np.array_equal(leaving, ~positive)


def test_the_normalisation_and_the_threshold_are_those_asked_for():
    pull = torch.tensor([[1.0], [2.0], [3.0], [10.0]])
    members = Members(pull, torch.tensor([9, 1, 1, 1]))

    def leaving(**choices):
        return Splitter(**choices).leaving(members, torch.Generator()).tolist()

    assert leaving() == [False, False, False, True]
    assert leaving(threshold="median") == [False, False, True, True]
    assert leaving(threshold="balanced") == [False, True, True, True]
    assert leaving(normalisation="none") == [False, False, True, True]  # all ≥ 0: at the median
    assert leaving(normalisation="unit-rows", threshold="balanced") == [False, True, True, True]


@pytest.mark.parametrize("size", [0, 1])
def test_one_member_cannot_be_split(size):
    with pytest.raises(CelrecError, match="cannot be split"):
        Splitter().leaving(Members(torch.zeros(size, 2), torch.ones(size)), torch.Generator())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", SPLIT_METHODS)
def test_training_that_diverged_is_told(method, bad):
    pull = torch.ones(4, 2)
    pull[1, 0] = bad
    with pytest.raises(CelrecError, match="finite; lower the learning rate"):
        Splitter(method=method).leaving(Members(pull, torch.ones(4), pull), torch.Generator())


@pytest.mark.parametrize(
    ("option", "choices"),
    [("method", SPLIT_METHODS), ("normalisation", NORMALISATIONS), ("threshold", THRESHOLDS)],
)
def test_an_unknown_name_is_answered_with_the_known_ones(option, choices):
    with pytest.raises(CelrecError) as refused:
        Splitter(**{option: "best"})
    assert str(refused.value) == f"{option} must be one of {', '.join(choices)}, not 'best'"


def test_only_user_inspired_splits_need_partners():
    needing = [name for name in SPLIT_METHODS if Splitter(method=name).needs_partners]
    assert needing == ["user-2-means"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=9))
def test_the_cluster_to_split_has_the_highest_priority_among_those_of_several_members(clusters):
    priority, sizes = (torch.tensor(column) for column in zip(*clusters, strict=True))
    large = [k for k, (_, size) in enumerate(clusters) if size > 1]
    expected = max(large, key=lambda k: (clusters[k][0], -k)) if large else None
    assert choose_cluster(priority, sizes) == expected
    assert choose_cluster(priority.float(), sizes) == expected
