import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, ClusteredEmbedding, Clusterer
from celrec.cel.quadratics import QuadraticEvidence, Quadratics, SharedQuadratics
from celrec.cel.reassignment import Reassignment
from celrec.cel.split import Splitter

shapes = st.tuples(st.integers(2, 12), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))


def drawn(members, dim, seed):
    """Members with between no interactions and many, and a prior that keeps all convex."""
    rng = np.random.default_rng(seed)
    curvature, linear = np.zeros((members, dim, dim)), np.zeros((members, dim))
    for member in range(members):
        for _ in range(rng.integers(0, 6)):
            partner, target = rng.normal(size=dim), rng.normal()
            curvature[member] += np.outer(partner, partner)
            linear[member] += target * partner
        curvature[member] += 0.3 * np.eye(dim)
    return Quadratics(torch.tensor(curvature), torch.tensor(linear))


def slow_loss(quadratics, member, vector):
    matrix, right = quadratics.curvature[member].numpy(), quadratics.linear[member].numpy()
    return 0.5 * vector @ matrix @ vector - right @ vector


def slow_rows(quadratics, assignment, count):
    rows = []
    for cluster in range(count):
        some = np.flatnonzero(assignment == cluster)
        matrix = sum(quadratics.curvature[j].numpy() for j in some)
        rows.append(np.linalg.solve(matrix, sum(quadratics.linear[j].numpy() for j in some)))
    return np.stack(rows)


@given(shapes)
def test_losses_are_those_of_each_member_under_each_row(shape):
    members, dim, clusters, seed = shape
    quadratics = drawn(members, dim, seed)
    rows = torch.tensor(np.random.default_rng(seed).normal(size=(clusters, dim)))
    losses = quadratics.losses(rows)
    for member in range(members):
        for cluster in range(clusters):
            expected = slow_loss(quadratics, member, rows[cluster].numpy())
            assert float(losses[member, cluster]) == pytest.approx(expected, abs=1e-9)


def clustered(quadratics, clusters):
    """A table whose clusters have the members in turn, and evidence for it."""
    members, dim = quadratics.linear.shape
    table = ClusteredEmbedding(members, dim, max_clusters=clusters, dtype=torch.float64)
    table.start_from(torch.arange(members) % clusters)
    evidence = QuadraticEvidence(table, torch.ones(members))
    evidence.members = quadratics
    return table, evidence


@given(shapes, st.booleans())
def test_rows_are_the_best_for_their_members(shape, shared):
    members, dim, clusters, seed = shape
    clusters = min(clusters, members)
    quadratics = (drawn_shared if shared else drawn)(members, dim, seed)
    table, evidence = clustered(quadratics, clusters)
    evidence.solve_rows()
    own = as_quadratics(quadratics) if shared else quadratics
    expected = slow_rows(own, table.assignment[:-1].numpy(), clusters)
    np.testing.assert_allclose(table.weight.detach(), expected, atol=1e-8)


@given(shapes)
def test_non_negative_rows_meet_the_conditions_of_an_optimum(shape):
    members, dim, clusters, seed = shape
    clusters = min(clusters, members)
    quadratics = drawn(members, dim, seed)
    table, evidence = clustered(quadratics, clusters)
    table.weight.data.zero_()
    evidence.non_negative = True
    evidence.solve_rows(passes=500)
    rows = table.weight.detach()
    own = table.assignment[:-1].long()
    slopes = -torch.zeros_like(rows).index_add_(0, own, quadratics.gradients(rows[own]))
    assert rows.min() >= 0
    assert slopes.min() > -1e-6  # no value would go up
    assert (slopes * rows).abs().max() < 1e-6  # and only those at 0 would go down


def drawn_shared(members, dim, seed):
    rng = np.random.default_rng(seed)
    partners = rng.normal(size=(dim + 2, dim))
    return SharedQuadratics(
        torch.tensor(rng.uniform(0.1, 5, members)),
        torch.tensor(partners.T @ partners),
        torch.tensor(rng.normal(size=(members, dim))),
    )


def as_quadratics(shared):
    """The same losses, with a curvature for each member."""
    return Quadratics(shared.weight[:, None, None] * shared.metric, shared.linear)


@given(shapes)
def test_one_curvature_for_all_is_the_same_as_one_for_each(shape):
    members, dim, clusters, seed = shape
    shared = drawn_shared(members, dim, seed)
    each, rng = as_quadratics(shared), np.random.default_rng(seed)
    vectors, rows = (torch.tensor(rng.normal(size=(n, dim))) for n in (members, clusters))
    gradients = each.gradients(vectors)
    torch.testing.assert_close(shared.gradients(vectors), gradients)
    torch.testing.assert_close(shared.losses(rows), each.losses(rows))
    torch.testing.assert_close(shared.gains(gradients), each.gains(gradients))
    assignment = torch.arange(members) % clusters
    for mine, theirs in zip(
        shared.sums(assignment, clusters), each.sums(assignment, clusters), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    some = torch.arange(0, members, 2)
    torch.testing.assert_close(shared.at(some).linear, each.at(some).linear)


@given(shapes, st.integers(0, 3), st.booleans())
def test_beside_other_rows_the_loss_is_that_of_the_sum(shape, first, shared):
    members, dim, clusters, seed = shape
    quadratics = (drawn_shared if shared else drawn)(members, dim, seed)
    columns, rng = slice(min(first, dim - 1), dim), np.random.default_rng(seed)
    vectors = torch.tensor(rng.normal(size=(members, dim)))
    steps = torch.tensor(rng.normal(size=(clusters, dim)))
    steps[:, : columns.start] = 0
    beside = quadratics.beside(vectors, columns)
    found = beside.losses(steps[:, columns])
    for member in range(members):
        own = as_quadratics(quadratics) if shared else quadratics
        expected = [slow_loss(own, member, (vectors[member] + one).numpy()) for one in steps]
        # Up to a constant of each member.
        np.testing.assert_allclose(
            found[member] - found[member, 0], np.array(expected) - expected[0], atol=1e-7
        )


@given(shapes)
def test_gains_are_what_rows_of_their_own_would_bring(shape):
    members, dim, _, seed = shape
    quadratics = drawn(members, dim, seed)
    vectors = torch.tensor(np.random.default_rng(seed).normal(size=(members, dim)))
    gains = quadratics.gains(quadratics.gradients(vectors))
    for member in range(members):
        best = np.linalg.solve(
            quadratics.curvature[member].numpy(), quadratics.linear[member].numpy()
        )
        before = slow_loss(quadratics, member, vectors[member].numpy())
        fall = before - slow_loss(quadratics, member, best)
        assert float(gains[member]) == pytest.approx(fall, rel=1e-6, abs=1e-9)


def total(table, quadratics):
    vectors = table.weight.detach()[table.assignment[:-1].long()].double()
    return sum(slow_loss(quadratics, j, vectors[j].numpy()) for j in range(len(vectors)))


@given(st.integers(6, 30), st.integers(1, 4), st.integers(0, 99))
def test_steps_of_the_clusterer_never_raise_the_loss(members, dim, seed):
    quadratics = drawn(members, dim, seed)
    table = ClusteredEmbedding(members, dim, max_clusters=5, dtype=torch.float64)
    evidence = QuadraticEvidence(table, torch.ones(members))
    evidence.members = quadratics
    clusterer = Clusterer(
        table,
        None,
        evidence,
        split_every=1,
        reassign_every=1,
        criterion="gain",
        reassignment=Reassignment(keep=0.0),
    )
    loss = float("inf")
    for _ in range(8):
        evidence.solve_rows()
        solved = total(table, quadratics)
        clusterer.step()
        assert solved <= loss + 1e-9
        loss = total(table, quadratics)
        assert loss <= solved + 1e-9
        assert bool((table.sizes() > 0).all())


def test_the_cluster_that_gains_most_is_split():
    quadratics = Quadratics(
        torch.eye(1, dtype=torch.float64).repeat(4, 1, 1),
        torch.tensor([[-1.0], [1.0], [7.0], [13.0]], dtype=torch.float64),
    )
    table = ClusteredEmbedding(4, 1, max_clusters=3, dtype=torch.float64)
    table.start_from(torch.tensor([0, 0, 1, 1]))
    table.weight.data[:2] = torch.tensor([[0.0], [10.0]])
    evidence = QuadraticEvidence(table, torch.ones(4))
    evidence.members = quadratics
    clusterer = Clusterer(table, None, evidence, criterion="gain")
    (move,) = clusterer.split()
    assert move.cluster == 1
    assert table.assignment[:-1].tolist() in ([0, 0, 1, 2], [0, 0, 2, 1])


def test_methods_that_look_at_partners_are_refused():
    table = ClusteredEmbedding(4, 2, max_clusters=3)
    evidence = QuadraticEvidence(table, torch.ones(4))
    evidence.members = drawn(4, 2, 0)
    clusterer = Clusterer(table, None, evidence, splitter=Splitter("user-2-means"))
    with pytest.raises(CelrecError, match="QuadraticEvidence does not know"):
        clusterer.split()
