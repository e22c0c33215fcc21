import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, ClusteredEmbedding, LevelledEmbedding
from celrec.cel.codes import AdditiveFit, KMeansFit
from celrec.cel.levels import LevelFit, LevelsConfig
from celrec.cel.quadratics import Quadratics, SharedQuadratics

shapes = st.tuples(
    st.integers(6, 30), st.sampled_from([2, 4]), st.integers(1, 4), st.integers(1, 3)
)
seeds = st.integers(0, 99)


def drawn(members, dim, seed):
    rng = np.random.default_rng(seed)
    partners = rng.normal(size=(dim + 3, dim))
    return SharedQuadratics(
        torch.tensor(rng.uniform(0.5, 9, members)),
        torch.tensor(partners.T @ partners),
        torch.tensor(rng.normal(size=(members, dim))),
    )


def table_of(shape, parts=1):
    members, dim, clusters, levels = shape
    if levels == parts == 1:
        return ClusteredEmbedding(members, dim, max_clusters=clusters)
    return LevelledEmbedding(members, dim, max_clusters=clusters, levels=levels, parts=parts)


def levels_of(table):
    return [table] if isinstance(table, ClusteredEmbedding) else table.clustered_levels


def slow_loss(table, members):
    total = 0.0
    for member in range(len(members.points)):
        apart = members.points[member] - table(torch.tensor(member)).detach().double()
        total += float(members.weight[member] * (apart @ members.metric @ apart))
    return total


@given(shapes, seeds)
def test_sweeps_of_joint_codes_hardly_raise_the_loss_and_empty_no_cluster(shape, seed):
    members, table = drawn(*shape[:2], seed), table_of(shape)
    fit = AdditiveFit(table, LevelsConfig(refine=2), seed)
    fit.grow(members)
    loss = slow_loss(table, members)
    for _ in range(3):
        fit.refine(members, 1)
        after = slow_loss(table, members)
        # Rows are solved for with a small ridge, and kept in single precision.
        assert after <= loss * (1 + 1e-2) + 1e-4
        loss = after
    assert all(bool((level.sizes() > 0).all()) for level in levels_of(table))


def test_a_beam_as_wide_as_all_codes_finds_the_best_of_them():
    """With so few rows the beam keeps every sum, so codes are those of a search over all."""
    members, table = drawn(12, 2, 3), table_of((12, 2, 3, 2))
    fit = AdditiveFit(table, LevelsConfig(refine=6))
    fit.grow(members)
    rows = [level.weight[: level.num_clusters].detach().double() for level in levels_of(table)]
    best = 0.0
    for member in range(12):
        errors = []
        for codes in itertools.product(*(range(len(one)) for one in rows)):
            vector = sum(one[code] for one, code in zip(rows, codes, strict=True))
            apart = members.points[member] - vector
            errors.append(float(members.weight[member] * (apart @ members.metric @ apart)))
        best += min(errors)
    # Rows were improved once more after the last search.
    assert slow_loss(table, members) <= best * 1.05 + 1e-6


def test_joint_codes_are_at_least_about_as_good_as_codes_of_one_level_after_the_other():
    members, losses = drawn(400, 4, 0), {}
    for name in ("joint", "cel"):
        table = table_of((400, 4, 8, 3))
        config = LevelsConfig()
        if name == "joint":
            AdditiveFit(table, config).grow(members)
        else:
            LevelFit(table, members.weight, config).grow(members)
        losses[name] = slow_loss(table, members)
    assert losses["joint"] < 1.02 * losses["cel"]


@given(shapes, seeds, st.booleans())
def test_codes_by_k_means_stay_and_their_rows_are_the_best(shape, seed, weighted):
    members, table = drawn(*shape[:2], seed), table_of(shape)
    fit = KMeansFit(table, LevelsConfig(), seed, weighted=weighted)
    fit.grow(members)
    before = [level.assignment.clone() for level in levels_of(table)]
    fit.refine(members, 20)
    loss = slow_loss(table, members)
    assert all(
        torch.equal(codes, level.assignment)
        for codes, level in zip(before, levels_of(table), strict=True)
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for level in levels_of(table):
            level.weight += 0.05 * torch.randn(level.weight.shape, generator=generator)
    assert slow_loss(table, members) >= loss * (1 - 1e-3)


def test_product_codes_are_k_means_of_each_part():
    members, table = drawn(40, 4, 1), table_of((40, 4, 3, 1), parts=2)
    KMeansFit(table, LevelsConfig()).grow(members)
    assert [table.part_of(number) for number in range(2)] == [slice(0, 2), slice(2, 4)]
    assert table.codes(torch.arange(40)).unique(dim=0).shape[0] > 3  # more than rows of a part


@pytest.mark.parametrize("kind", [AdditiveFit, KMeansFit])
def test_the_same_seed_gives_the_same_codes(kind):
    tables = [table_of((30, 2, 4, 2)) for _ in range(2)]
    for table in tables:
        kind(table, LevelsConfig(), 7).grow(drawn(30, 2, 0))
    first, second = (table.state_dict() for table in tables)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_they_cannot_do_is_refused():
    table = table_of((12, 2, 3, 1), parts=2)
    with pytest.raises(CelrecError, match="parts must be 1 for joint codes, not 2"):
        AdditiveFit(table, LevelsConfig())
    with pytest.raises(CelrecError, match="sums of joint codes may be negative"):
        AdditiveFit(table_of((12, 2, 3, 2)), LevelsConfig(non_negative=True))
    eye = torch.eye(2).double().repeat(12, 1, 1)
    members = Quadratics(eye, torch.ones(12, 2).double())
    for kind in (AdditiveFit, KMeansFit):
        with pytest.raises(CelrecError, match="members must have one metric"):
            kind(table_of((12, 2, 3, 2)), LevelsConfig()).grow(members)
