import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, ClusteredEmbedding, LevelledEmbedding
from celrec.cel.levels import LevelFit, LevelsConfig
from celrec.cel.quadratics import SharedQuadratics

shapes = st.tuples(
    st.integers(6, 40), st.sampled_from([2, 4]), st.integers(1, 5), st.integers(1, 3)
)
seeds = st.integers(0, 99)


def drawn(members, dim, seed, *, non_negative=False):
    rng = np.random.default_rng(seed)
    partners = rng.normal(size=(dim + 3, dim))
    points = rng.normal(size=(members, dim))
    return SharedQuadratics(
        torch.tensor(rng.uniform(0.5, 9, members)),
        torch.tensor(partners.T @ partners),
        torch.tensor(np.abs(points) if non_negative else points),
    )


def table_of(shape, parts=1):
    members, dim, clusters, levels = shape
    if levels == parts == 1:
        return ClusteredEmbedding(members, dim, max_clusters=clusters, dtype=torch.float64)
    return LevelledEmbedding(
        members, dim, max_clusters=clusters, levels=levels, parts=parts, dtype=torch.float64
    )


def levels_of(table):
    return [table] if isinstance(table, ClusteredEmbedding) else table.clustered_levels


def slow_loss(table, members):
    """Half of the weighted squared distance of each id's vector to its point, in the metric."""
    total = 0.0
    for member in range(len(members.points)):
        apart = members.points[member] - table(torch.tensor(member)).detach()
        total += float(members.weight[member] * (apart @ members.metric @ apart)) / 2
    return total


def fitted(shape, seed, *, parts=1, non_negative=False, refine=2):
    members = drawn(*shape[:2], seed, non_negative=non_negative)
    table = table_of(shape, parts)
    config = LevelsConfig(refine=refine, non_negative=non_negative)
    fit = LevelFit(table, members.weight, config, seed)
    fit.grow(members)
    return table, members, fit


@given(shapes, seeds, st.sampled_from([1, 2]))
def test_refinement_never_raises_the_loss_and_empties_no_cluster(shape, seed, parts):
    table, members, fit = fitted(shape, seed, parts=parts)
    loss = slow_loss(table, members)
    for _ in range(3):
        fit.refine(members, 1)
        after = slow_loss(table, members)
        assert after <= loss + 1e-9 * (1 + loss)
        loss = after
    for level in levels_of(table):
        assert bool((level.sizes() > 0).all())


@given(shapes, seeds)
def test_a_further_level_never_raises_the_loss(shape, seed):
    members, dim, clusters, levels = shape
    fewer, quadratics, _ = fitted((members, dim, clusters, levels), seed, refine=0)
    more, _, _ = fitted((members, dim, clusters, levels + 1), seed, refine=0)
    assert slow_loss(more, quadratics) <= slow_loss(fewer, quadratics) + 1e-9


@given(shapes, seeds)
def test_all_rows_are_used_where_members_differ(shape, seed):
    table, _, _ = fitted((shape[0], shape[1], shape[2], 1), seed)
    assert table.num_clusters == shape[2]


@given(shapes, seeds)
def test_the_same_seed_gives_the_same_table(shape, seed):
    first, second = fitted(shape, seed)[0], fitted(shape, seed)[0]
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])


@given(shapes, seeds)
def test_sums_of_rows_are_not_negative_where_that_is_asked_for(shape, seed):
    table, members, fit = fitted(shape, seed, non_negative=True)
    ids = torch.arange(shape[0])
    assert float(table(ids).detach().min()) >= -1e-6
    loss = slow_loss(table, members)
    fit.refine(members, 2)
    assert float(table(ids).detach().min()) >= -1e-6
    assert slow_loss(table, members) <= loss + 1e-6 * (1 + loss)


def test_with_a_row_for_each_member_nothing_is_lost():
    table, members, _ = fitted((9, 2, 9, 1), 0)
    assert slow_loss(table, members) < 1e-12


def test_planted_codes_of_two_levels_are_found():
    rng = np.random.default_rng(0)
    coarse, fine = 100 * rng.normal(size=(4, 3)), rng.normal(size=(3, 3))
    points = torch.tensor((coarse[:, None] + fine[None]).reshape(12, 3))
    table = LevelledEmbedding(12, 3, max_clusters=4, levels=2, dtype=torch.float64)
    ones = torch.ones(12, dtype=torch.float64)
    fit = LevelFit(table, ones, LevelsConfig())
    fit.grow(SharedQuadratics(ones, torch.eye(3, dtype=torch.float64), points))
    torch.testing.assert_close(table(torch.arange(12)).detach(), points, atol=1e-6, rtol=0)
    first = table.codes(torch.arange(12))[:, 0].reshape(4, 3)
    assert bool((first == first[:, :1]).all())
    assert len(first[:, 0].unique()) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"growth": 1.5}, "growth must be a share of the clusters, not 1.5"),
        ({"settle": 0}, "settle must be positive, not 0"),
        ({"refine": -1}, "refine must not be negative, not -1"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(CelrecError, match=message):
        LevelsConfig(**wrong)
