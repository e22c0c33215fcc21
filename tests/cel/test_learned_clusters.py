import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from celrec import CelrecError
from celrec.cel.learned_clusters import learned_clusters

VECTORS = arrays.arrays(
    "float64",
    st.tuples(st.integers(1, 30), st.integers(1, 3)),
    elements=st.floats(-100, 100, allow_subnormal=False, width=16),
).map(torch.from_numpy)


def error(vectors, assignment, rows, weights=None):
    squared = (vectors - rows[assignment]).square().sum(1)
    return float(squared.sum() if weights is None else (weights * squared).sum())


@given(VECTORS, st.data())
def test_clusters_are_full_rows_are_means_and_nobody_is_nearer_to_another(vectors, data):
    count = data.draw(st.integers(1, len(vectors)))
    assignment, rows = learned_clusters(vectors, count)
    assert rows.shape == (count, vectors.shape[1])
    assert sorted(set(assignment.tolist())) == list(range(count))
    for k in range(count):
        torch.testing.assert_close(rows[k], vectors[assignment == k].mean(0))


@given(VECTORS, st.data())
def test_with_twice_as_many_clusters_the_error_is_never_higher(vectors, data):
    count = data.draw(st.integers(1, max(1, len(vectors) // 2)))
    more = data.draw(st.integers(max(1, 2 * count - 1), max(1, min(2 * count, len(vectors)))))
    before = error(vectors, *learned_clusters(vectors, count))
    assert error(vectors, *learned_clusters(vectors, more)) <= before * (1 + 1e-9) + 1e-9


@given(VECTORS)
def test_as_many_clusters_as_ids_give_the_vectors_back(vectors):
    assignment, rows = learned_clusters(vectors, len(vectors))
    assert torch.equal(rows[assignment], vectors)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_clusters_that_are_there_are_found_and_cost_nothing(count, seed):
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(count, 4, generator=rng)
    kind = torch.cat([torch.arange(count), torch.randint(count, (60,), generator=rng)])
    assignment, rows = learned_clusters(centres[kind], len(centres))
    assert torch.equal(rows[assignment], centres[kind])


def test_members_end_where_they_are_nearest():
    vectors = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    assignment, rows = learned_clusters(vectors, 3)
    nearest = torch.cdist(vectors, rows).argmin(1)
    assert (assignment == nearest).double().mean() > 0.97
    # Far fewer errors than ids that are put together at random make.
    shuffled = assignment[torch.randperm(500, generator=torch.Generator().manual_seed(1))]
    means = torch.stack([vectors[shuffled == k].mean(0) for k in range(3)])
    assert error(vectors, assignment, rows) < 0.85 * error(vectors, shuffled, means)


def test_it_is_about_as_good_as_many_runs_of_k_means():
    vectors = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    best = float("inf")
    for seed in range(10):
        order = torch.randperm(400, generator=torch.Generator().manual_seed(seed))
        rows = vectors[order[:20]]
        for _ in range(30):
            side = torch.cdist(vectors, rows).argmin(1)
            rows = torch.stack([vectors[side == k].mean(0) for k in range(20)])
        best = min(best, error(vectors, side, rows))
    assert error(vectors, *learned_clusters(vectors, 20)) < 1.08 * best


@given(VECTORS, st.data())
def test_a_row_is_the_mean_weighted_by_interactions(vectors, data):
    count = data.draw(st.integers(1, len(vectors)))
    counts = torch.randint(1, 50, (len(vectors),), generator=torch.Generator().manual_seed(count))
    assignment, rows = learned_clusters(vectors, count, counts)
    for k in range(count):
        members = assignment == k
        share = counts[members].double() / counts[members].sum()
        torch.testing.assert_close(rows[k], share @ vectors[members])


def test_ids_with_many_interactions_are_kept_better_and_those_without_any_have_a_row():
    vectors = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(200)
    counts[:20] = 1000
    assignment, rows = learned_clusters(vectors, 20, counts)
    plain = learned_clusters(vectors, 20)
    warm = error(vectors[:20], assignment[:20], rows)
    assert warm < 0.1 * error(vectors[:20], plain[0][:20], plain[1])
    assert rows.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rows_have_the_type_of_the_vectors_and_sums_do_not(dtype):
    # 20000 members of which each would change nothing in a sum of 16 bits.
    vectors = torch.cat([torch.full((20_000, 1), 1.0), torch.full((20_000, 1), 3.0)]).to(dtype)
    (row,) = learned_clusters(vectors, 1)[1]
    assert row.dtype == dtype
    assert float(row) == 2


def test_the_same_vectors_give_the_same_clusters_and_are_left_alone():
    vectors = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    copy = vectors.clone()
    first, second = learned_clusters(vectors, 9), learned_clusters(vectors, 9)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(vectors, copy)


@pytest.mark.parametrize(
    ("clusters", "interactions", "complaint"),
    [
        (0, None, r"clusters must lie in 1 … 4 \(the ids\), not 0"),
        (5, None, "clusters must lie in"),
        (2, torch.ones(3), r"one number per id \(4\), not shape \(3,\)"),
        (2, torch.tensor([1.0, -1, 1, 1]), "not negative"),
        (2, torch.tensor([1.0, torch.inf, 1, 1]), "finite"),
        (2, torch.zeros(4), "not all 0"),
    ],
)
def test_what_makes_no_sense_is_refused(clusters, interactions, complaint):
    with pytest.raises(CelrecError, match=complaint):
        learned_clusters(torch.randn(4, 2), clusters, interactions)


def test_a_table_that_diverged_is_refused():
    with pytest.raises(CelrecError, match="vectors must be finite"):
        learned_clusters(torch.tensor([[1.0], [torch.nan]]), 1)
