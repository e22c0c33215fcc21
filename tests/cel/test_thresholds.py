import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.cel.criteria import at_median, at_zero, balanced

# Few different scores, so that there are ties.
members = st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 6)), min_size=2, max_size=12).map(
    lambda pairs: tuple(torch.tensor(column) for column in zip(*pairs, strict=True))
)


def all_cuts(scores):
    """Every way to let the members with the highest scores leave, one or more, but not all."""
    order = sorted(range(len(scores)), key=lambda j: float(scores[j]))  # stable, so ties are too
    return [order[size:] for size in range(1, len(scores))]


@given(members)
def test_at_zero_those_with_no_negative_score_leave(known):
    scores, interactions = known
    expected = [score >= 0 for score in scores.tolist()]
    assert at_zero(scores.double(), interactions).tolist() == expected


@given(members)
def test_at_the_median_the_upper_half_leaves_with_ties_in_order(known):
    scores, interactions = known
    leaving = at_median(scores.double(), interactions)
    expected = all_cuts(scores)[len(scores) // 2 - 1]
    assert leaving.nonzero().squeeze(1).tolist() == sorted(expected)
    if len(scores.unique()) == len(scores):
        assert torch.equal(leaving, scores >= np.median(scores))


@given(members)
def test_balanced_is_the_best_of_all_cuts(known):
    scores, interactions = known

    def imbalance(leaving):
        left = sum(int(interactions[j]) for j in leaving)
        return abs(int(interactions.sum()) - 2 * left)

    leaving = balanced(scores.double(), interactions).nonzero().squeeze(1).tolist()
    cuts = all_cuts(scores)
    assert leaving in [sorted(cut) for cut in cuts]
    assert imbalance(leaving) == min(imbalance(cut) for cut in cuts)


@given(members)
def test_the_median_and_the_balanced_cut_leave_no_side_empty(known):
    scores, interactions = known
    for threshold in (at_median, balanced):
        leaving = threshold(scores.double(), interactions)
        assert leaving.dtype == torch.bool
        assert 0 < int(leaving.sum()) < len(scores)


def test_balance_counts_interactions_beyond_what_32_bits_hold():
    interactions = torch.tensor([2**33, 2**33, 2**34 + 1])
    scores = torch.tensor([0.1, 0.2, 0.3])
    assert balanced(scores, interactions).tolist() == [False, False, True]
