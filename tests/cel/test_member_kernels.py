import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.cel.member_kernels import (
    first_component_compiled,
    look_up,
    split_crowded_compiled,
    tally,
)
from celrec.cel.split import BACKENDS, first_component, split_crowded
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
    expected, parents = split_crowded(names, ends, pulls, counts, most, fresh)
    found = split_crowded_compiled(names, ends, pulls, counts, most, fresh)
    assert found[0].tolist() == expected.tolist()
    assert found[1].tolist() == parents.tolist()
    totals = {name: counts[expected == name].sum() for name in set(expected.tolist())}
    if len(parents) < room:
        alone = [name for name in totals if (expected == name).sum() == 1]
        assert all(total <= most or name in alone for name, total in totals.items())


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**20))
@settings(max_examples=50)
def test_the_compiled_first_component_is_that_of_the_eigenvectors(size, dim, seed):
    rows = np.random.default_rng(seed).normal(size=(size, dim))
    values = np.linalg.svd(rows, compute_uv=False)
    if len(values) == 1 or values[0] > 1.05 * values[1]:
        expected = first_component(torch.from_numpy(rows)).numpy()
        np.testing.assert_allclose(first_component_compiled(rows), expected, atol=1e-9)


@pytest.mark.parametrize("split", BACKENDS.values(), ids=BACKENDS)
def test_equal_gradients_are_cut_in_half_by_events(split):
    counts = np.array([3, 1, 1, 1, 3, 1])
    whose, parents = split(
        np.array([4]), np.array([0, 6]), np.ones((6, 2)), counts, 8.0, np.array([5, 6])
    )
    assert whose.tolist() == [4, 4, 4, 5, 5, 5]
    assert parents.tolist() == [4]


@pytest.mark.parametrize("split", BACKENDS.values(), ids=BACKENDS)
def test_two_directions_that_are_as_long_are_no_reason_to_search_for_ever(split):
    pulls = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    whose, _ = split(np.array([0]), np.array([0, 4]), pulls, np.ones(4, int), 3.0, np.array([1]))
    assert sorted(whose.tolist()) == [0, 0, 1, 1]
