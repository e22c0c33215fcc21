import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.cel.reassignment import merge_while, nearest_pair
from celrec.embeddings.clustered import ClusteredEmbedding


def random_rows(seed, count, dim=3, *, equal):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, dim, generator=generator)
    return rows[torch.randint(count, (count,), generator=generator)] if equal else rows


@given(st.integers(0, 2**20), st.integers(2, 9), st.booleans(), st.booleans(), st.booleans())
def test_the_nearest_pair_is_that_of_a_loop_over_all(seed, count, equal, skip_equal, with_metric):
    rows = random_rows(seed, count, equal=equal)
    factor = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
    metric = factor.T @ factor if with_metric else None
    distances = {}
    for one, other in itertools.combinations(range(count), 2):
        apart = rows[one] - rows[other]
        squared = apart @ apart if metric is None else apart @ metric @ apart
        if not (skip_equal and metric is None and not apart.any()):
            distances[one, other] = float(squared if with_metric else squared.sqrt())
    first, second, distance = nearest_pair(rows, metric, skip_equal=skip_equal and not with_metric)
    if not distances:
        assert distance == float("inf")
    else:
        assert distance == pytest.approx(min(distances.values()), abs=1e-4)
        assert distances[first, second] == pytest.approx(distance, abs=1e-4)


def test_equal_rows_far_from_the_origin_have_no_distance():
    rows = torch.tensor([[1e4, 1.0], [1e4, 1.5], [1e4, 1.0]])
    assert nearest_pair(rows) == (0, 2, 0.0)
    assert nearest_pair(rows, skip_equal=True) == (0, 1, 0.5)


def test_clusters_are_merged_until_a_merge_is_not_acceptable_which_is_undone():
    table = ClusteredEmbedding(6, 1, max_clusters=4)
    table.start_from(torch.tensor([0, 0, 0, 1, 2, 3]))
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[0.0], [4.0], [5.0], [100.0]]))
    merges = merge_while(table, torch.eye(1), lambda: table.num_clusters >= 2)
    assert merges == 2
    assert table.assignment[:-1].tolist() == [0, 0, 0, 0, 0, 1]
    # 4 and 5 become 4.5; with three zeros, the mean of all members is 1.8.
    assert table.weight[:2].flatten().tolist() == pytest.approx([1.8, 100.0])
