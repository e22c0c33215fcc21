import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.cel.reassignment import Reassignment

rules = st.builds(
    Reassignment,
    keep=st.sampled_from([0.0, 0.0, 0.3, 0.9, 1.0]),
    evidence=st.integers(0, 4),
    margin=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
)


@st.composite
def problems(draw, max_members=10, max_clusters=6):
    """Losses with many ties, clusters and numbers of interactions; some clusters may be empty."""
    members = draw(st.integers(1, max_members))
    clusters = draw(st.integers(1, max_clusters))
    values = st.integers(0, 3) if draw(st.booleans()) else st.floats(0, 1e6, width=32)
    row = st.lists(values, min_size=clusters, max_size=clusters)
    losses = draw(st.lists(row, min_size=members, max_size=members))
    cluster = st.integers(0, clusters - 1)
    current = draw(st.lists(cluster, min_size=members, max_size=members))
    counts = draw(st.lists(st.integers(0, 6), min_size=members, max_size=members))
    return torch.tensor(losses, dtype=torch.float32), torch.tensor(current), torch.tensor(counts)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def slow(losses, current, interactions, evidence=0, margin=0.0):
    """Member by member, then cluster by cluster, with nothing kept by chance."""
    losses, current = losses.double().numpy(), current.tolist()
    new, gain = list(current), []
    for j, row in enumerate(losses):
        best = int(row.argmin())
        gain.append(row[current[j]] - row[best])
        enough = int(interactions[j]) >= evidence
        if enough and gain[j] > margin * int(interactions[j]):
            new[j] = best
    while emptied := sorted(set(current) - set(new)):
        former = [j for j in range(len(current)) if current[j] == emptied[0]]
        new[min(former, key=lambda j: gain[j])] = emptied[0]
    return new


@given(problems(), st.integers(0, 4), st.sampled_from([0.0, 0.5, 2.0]))
def test_agrees_with_a_loop_over_the_members(problem, evidence, margin):
    losses, current, interactions = problem
    rule = Reassignment(keep=0.0, evidence=evidence, margin=margin)
    made = rule(losses.double(), current, interactions, generator())
    assert made.tolist() == slow(losses, current, interactions, evidence, margin)


@given(problems(), rules, st.integers(0, 100))
def test_nobody_is_worse_off_so_the_total_never_rises(problem, rule, seed):
    losses, current, interactions = problem
    made = rule(losses, current, interactions, generator(seed))
    everyone = torch.arange(len(current))
    assert (losses[everyone, made] <= losses[everyone, current]).all()


@given(problems(max_members=8, max_clusters=8), rules, st.integers(0, 100))
def test_no_cluster_that_had_a_member_is_left_empty(problem, rule, seed):
    losses, current, interactions = problem
    made = rule(losses, current, interactions, generator(seed))
    assert set(current.tolist()) <= set(made.tolist())


@given(st.permutations(range(9)), st.permutations(range(9)))
def test_clusters_of_one_member_trade_places_or_stay(current, wanted):
    losses = torch.ones(9, 9)
    losses[torch.arange(9), torch.tensor(wanted)] = 0
    rule = Reassignment(keep=0.0)
    assert rule(losses, torch.tensor(current), torch.ones(9), generator()).tolist() == wanted


def test_members_of_a_chain_of_clusters_all_go_back():
    # Each wants the next one's cluster and the last stays, so that the first would be empty;
    # sending its member back empties the second, and so on.
    size = 300
    losses = torch.ones(size, size)
    losses[torch.arange(size), torch.arange(1, size + 1).clamp(max=size - 1)] = 0
    made = Reassignment(keep=0.0)(losses, torch.arange(size), torch.ones(size), generator())
    assert made.tolist() == list(range(size))


def test_the_member_that_loses_least_goes_back():
    losses = torch.tensor([[5.0, 0.0], [2.0, 0.0], [3.0, 0.0], [9.0, 0.0]])
    current = torch.tensor([0, 0, 0, 1])
    made = Reassignment(keep=0.0)(losses, current, torch.ones(4), generator())
    assert made.tolist() == [1, 0, 1, 1]


@given(problems())
def test_ties_stay(problem):
    losses, current, interactions = problem
    equal = losses[:, :1].expand_as(losses)
    made = Reassignment(keep=0.0)(equal, current, interactions, generator())
    assert torch.equal(made, current)


@given(problems(), st.integers(0, 100))
def test_with_keep_one_nobody_moves(problem, seed):
    losses, current, interactions = problem
    made = Reassignment(keep=1.0)(losses, current, interactions, generator(seed))
    assert torch.equal(made, current)


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.75])
def test_the_share_that_stays_is_keep(keep):
    size = 20_000
    current = torch.arange(size) % 2
    losses = torch.ones(size, 2)
    losses[torch.arange(size), 1 - current] = 0
    made = Reassignment(keep=keep)(losses, current, torch.ones(size), generator())
    assert float((made == current).double().mean()) == pytest.approx(keep, abs=0.02)


def test_those_with_little_evidence_stay():
    losses = torch.tensor([[1.0, 0.0]]).expand(5, 2)
    current = torch.tensor([0, 0, 0, 0, 1])
    interactions = torch.tensor([0, 2, 3, 4, 3])
    made = Reassignment(keep=0.0, evidence=3)(losses, current, interactions, generator())
    assert made.tolist() == [0, 0, 1, 1, 1]


def test_a_move_has_to_gain_more_than_the_margin_per_interaction():
    losses = torch.tensor([[4.0, 0.0]]).expand(5, 2)
    current = torch.tensor([0, 0, 0, 0, 1])
    interactions = torch.tensor([1, 7, 8, 9, 3])
    made = Reassignment(keep=0.0, margin=0.5)(losses, current, interactions, generator())
    assert made.tolist() == [1, 1, 0, 0, 1]


def test_losses_that_are_no_numbers_move_nobody():
    losses = torch.tensor([[1.0, float("nan")], [float("nan"), 0.0], [float("inf"), float("inf")]])
    current = torch.tensor([0, 0, 1])
    made = Reassignment(keep=0.0)(losses, current, torch.ones(3), generator())
    assert made.tolist() == [0, 0, 1]


@given(problems(), rules, st.integers(0, 2**40))
def test_the_same_seed_gives_the_same_moves_and_leaves_its_input_alone(problem, rule, seed):
    before = [tensor.clone() for tensor in problem]
    first, second = (rule(*problem, generator(seed)) for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(problem, before, strict=True))


def test_another_seed_keeps_others():
    losses = torch.tensor([[1.0, 0.0]]).expand(100, 2)
    current = torch.zeros(100, dtype=torch.int64)
    first, second = (
        Reassignment(keep=0.5)(losses, current, torch.ones(100), generator(seed)) for seed in (0, 1)
    )
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"keep": -0.1}, "keep must be a probability"),
        ({"keep": 1.1}, "keep must be a probability"),
        ({"keep": float("nan")}, "keep must be a probability"),
        ({"evidence": -1}, "must not be negative"),
        ({"margin": -0.5}, "must not be negative"),
    ],
)
def test_rules_that_make_no_sense_are_refused(options, complaint):
    with pytest.raises(CelrecError, match=complaint):
        Reassignment(**options)


def test_if_all_want_the_same_cluster_one_stays_behind_in_each_other():
    size, clusters = 20_000, 500
    rng = np.random.default_rng(0)
    losses = torch.from_numpy(rng.random((size, 1), np.float32) + 1).repeat(1, clusters)
    losses[:, 0] = 0
    current = torch.arange(size) % clusters
    made = Reassignment(keep=0.0)(losses, current, torch.ones(size), generator())
    assert torch.bincount(made).tolist() == [size - clusters + 1] + [1] * (clusters - 1)
