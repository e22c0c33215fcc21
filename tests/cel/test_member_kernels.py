from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.cel.member_kernels import cut_clusters, look_up, tally
from celrec.cel.split import Splitter
from celrec.cel.split_scores import Members
from celrec.embeddings.clustered import ClusteredEmbedding


@given(
    st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 5), min_size=1, max_size=8)
)
def test_ids_are_tallied_as_a_dictionary_would(ids, counts):
    found = tally(np.array(ids, np.int64), np.array(counts))
    different = sorted(set(ids))
    assert found[0].tolist() == different
    assert found[1].tolist() == [ids.count(one) for one in different]
    assert found[2].tolist() == [counts[one] if one < len(counts) else 0 for one in different]


@pytest.mark.parametrize("clusters", [3, 300])
def test_vectors_are_those_of_the_table_for_unseen_ids_too(clusters):
    table = ClusteredEmbedding(400, 4, max_clusters=clusters)
    table.start_from(torch.arange(400) % clusters)
    table.unseen_cluster = 2
    ids = torch.tensor([5, -1, 399, 400, 10**9, 0])
    rows, vectors = look_up(ids.numpy(), table.assignment.numpy(), table.weight.detach().numpy())
    assert torch.equal(torch.from_numpy(rows), table.row_of(ids))
    assert torch.equal(torch.from_numpy(vectors), table(ids).detach())


def slow_cuts(groups, pulls, counts, most, fresh):
    """One cluster after the other, by `Splitter`."""
    splitter, parents, fresh = Splitter(threshold="balanced"), [], list(fresh)
    groups = {name: list(members) for name, members in groups.items()}
    while fresh:
        crowded = [
            (-counts[members].sum(), name)
            for name, members in groups.items()
            if counts[members].sum() > most and len(members) > 1
        ]
        if not crowded:
            break
        parent = min(crowded)[1]
        members = np.array(groups[parent])
        known = Members(torch.from_numpy(pulls[members]), torch.from_numpy(counts[members]))
        leaving = splitter.leaving(known, torch.Generator()).numpy()
        groups[parent] = members[~leaving].tolist()
        groups[fresh.pop(0)] = members[leaving].tolist()
        parents.append(parent)
    return groups, parents


@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=4),
    st.integers(1, 12),
    st.sampled_from([3.5, 12.0, 40.0]),
    st.integers(0, 6),
    st.integers(0, 2**20),
)
@settings(max_examples=100)
def test_clusters_are_cut_as_the_splitter_cuts_them_one_after_the_other(
    sizes, dim, most, room, seed
):
    rng = np.random.default_rng(seed)
    members = sum(sizes)
    pulls = rng.normal(size=(members, dim)) * rng.choice([1.0, 1e-6, 1e6])
    pulls += 10 * rng.normal(size=dim)
    counts = rng.integers(1, 6, size=members)
    names = 7 * np.arange(len(sizes))[::-1]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    fresh = np.arange(100, 100 + room)
    whose, parents = cut_clusters(names, ends, pulls, counts, most, fresh)
    groups = {int(name): range(*span) for name, span in zip(names, pairwise(ends), strict=True)}
    expected, expected_parents = slow_cuts(groups, pulls, counts, most, fresh.tolist())
    assert parents.tolist() == expected_parents
    for name, some in expected.items():
        assert np.flatnonzero(whose == name).tolist() == sorted(some)


def test_equal_gradients_are_cut_in_half_by_events():
    counts = np.array([3, 1, 1, 1, 3, 1])
    whose, parents = cut_clusters(
        np.array([4]), np.array([0, 6]), np.ones((6, 2)), counts, 8.0, np.array([5, 6])
    )
    assert whose.tolist() == [4, 4, 4, 5, 5, 5]
    assert parents.tolist() == [4]


def test_two_directions_that_are_as_long_are_no_reason_to_search_for_ever():
    pulls = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    whose, _ = cut_clusters(
        np.array([0]), np.array([0, 4]), pulls, np.ones(4, int), 3.0, np.array([1])
    )
    assert sorted(whose.tolist()) == [0, 0, 1, 1]
