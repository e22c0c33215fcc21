from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import Planted, read
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.offline.kernels import candidate_losses, member_gradients, normal_equations
from celrec.offline.pair_statistics import (
    DensePairStatistics,
    SparsePairStatistics,
    make_pair_statistics,
)
from tests.data.logs import logs

DIM = 3
FORMS = [DensePairStatistics, SparsePairStatistics]


@st.composite
def tables(draw, ids, spare=2):
    """A table of any kind, for at least so many ids."""
    ids += draw(st.integers(0, spare))
    kind = draw(st.sampled_from(["full", "modulo", "clustered", "mixed"]))
    torch.manual_seed(draw(st.integers(0, 1000)))
    if kind == "full":
        return FullEmbedding(ids, DIM)
    if kind == "modulo":
        return ModuloEmbedding(ids, DIM, rows=draw(st.integers(1, 5)))
    table = ClusteredEmbedding(ids, DIM, max_clusters=min(ids, 5))
    for _ in range(draw(st.integers(0, 3))):
        move(table, draw)
    if kind == "mixed":
        warm = draw(st.lists(st.booleans(), min_size=ids, max_size=ids))
        return MixedEmbedding.personalise(table, torch.tensor(warm))
    return table


def move(table, draw):
    """A split, with a change of the rows as by training, or a reassignment."""
    large = torch.nonzero(table.sizes() > 1).squeeze(1).tolist()
    if table.num_clusters < table.max_clusters and large and draw(st.booleans()):
        members = table.members(draw(st.sampled_from(large)))
        cluster = int(table.assignment[members[0]])
        table.split(cluster, members[: draw(st.integers(1, len(members) - 1))])
    else:
        table.assign(torch.tensor(draw(st.permutations(table.assignment[:-1].tolist()))))
    with torch.no_grad():
        table.weight.add_(torch.randn_like(table.weight), alpha=0.3)


def rows_and_targets(log, users, items):
    """The row of the user, the row of the item and the target of each interaction."""
    user_rows = users.row_of(torch.tensor(log.user)).tolist()
    item_rows = items.row_of(torch.tensor(log.item)).tolist()
    return list(zip(user_rows, item_rows, log.target.tolist(), strict=True))


def slow(log, users, items):
    """Interaction by interaction, in double precision."""
    a, b = users.weight.detach().double(), items.weight.detach().double()
    loss, user_slopes, item_slopes = 0.0, torch.zeros_like(a), torch.zeros_like(b)
    for r, k, target in rows_and_targets(log, users, items):
        error = float(a[r] @ b[k]) - target
        loss += error**2
        user_slopes[r] += 2 * error * b[k]
        item_slopes[k] += 2 * error * a[r]
    return loss, user_slopes[: users.num_rows], item_slopes[: items.num_rows]


def check(form, log, users, items):
    loss, user_slopes, item_slopes = form.loss_and_slopes()
    expected, user_expected, item_expected = slow(log, users, items)
    # The loss is a difference of sums as large as Σ x².
    scale = 1 + float(np.square(log.target).sum())
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-5 * scale)
    for found, wanted in ((user_slopes, user_expected), (item_slopes, item_expected)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4 * scale**0.5)


@given(logs(), st.data())
def test_loss_and_slopes_are_those_of_a_loop_over_interactions_through_all_moves(log, data):
    users, items = data.draw(tables(log.num_users)), data.draw(tables(log.num_items))
    forms = [form(log, users, items) for form in FORMS]
    for form in forms:
        check(form, log, users, items)
    for table in (users, items):
        if isinstance(table, ClusteredEmbedding):
            move(table, data.draw)
            for form in forms:
                check(form, log, users, items)
    if isinstance(users, ClusteredEmbedding):
        users.grow(users.num_embeddings + 3)
        for form in forms:
            check(form, log, users, items)


@pytest.mark.parametrize("form", FORMS)
def test_slopes_are_those_that_autograd_finds(form):
    log = Planted(rows=5_000, users=40, items=30, dim=4, item_clusters=4).interactions()
    torch.manual_seed(0)
    users, items = FullEmbedding(40, 8), ClusteredEmbedding(30, 8, max_clusters=6)
    items.start_from(torch.arange(30) % 6)
    predicted = (users(torch.tensor(log.user)) * items(torch.tensor(log.item))).sum(-1)
    loss = (predicted - torch.tensor(log.target)).double().square().sum()
    loss.backward()
    found, user_slopes, item_slopes = form(log, users, items).loss_and_slopes()
    assert found == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(user_slopes, users.weight.grad, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(item_slopes, items.weight.grad, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("form", FORMS)
def test_a_pair_that_repeats_counts_each_time(form):
    log = read({"user": [1, 1, 1, 2], "item": [1, 1, 1, 1], "rating": [1.0, 2.0, 3.0, 5.0]})
    users, items = FullEmbedding(2, DIM), FullEmbedding(1, DIM)
    check(form(log, users, items), log, users, items)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "make",
    [
        lambda ids: FullEmbedding(ids, DIM),
        lambda ids: ModuloEmbedding(ids, DIM, rows=2),
        lambda ids: ClusteredEmbedding(ids, DIM, max_clusters=2),
    ],
)
def test_unseen_ids_have_the_row_that_the_table_gives_them(form, make):
    known = read({"user": [1, 2, 3], "item": [1, 2, 3], "rating": [1.0, 2.0, 3.0]})
    log = read({"user": [1, 9, 3], "item": [8, 2, 3], "rating": [4.0, 5.0, 1.0]}, like=known)
    assert (log.user.tolist(), log.item.tolist()) == ([0, -1, 2], [-1, 1, 2])
    users, items = make(3), make(3)
    if isinstance(users, ClusteredEmbedding):
        users.split(0, torch.tensor([2]))  # the last id is not where unseen ids are
        with torch.no_grad():
            users.weight[1] += 1
    check(form(log, users, items), log, users, items)


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_of_a_perfect_fit_is_no_less_than_nothing(form):
    # Each term of the sum is rounded, so that what is left may have either sign.
    for seed in range(20):
        torch.manual_seed(seed)
        users, items = FullEmbedding(20, DIM), FullEmbedding(20, DIM)
        truth = (users.weight[:-1] @ items.weight[:-1].T).detach().flatten()
        log = read(
            {"user": np.repeat(range(20), 20), "item": [*range(20)] * 20, "rating": truth.numpy()}
        )
        assert 0 <= form(log, users, items).loss_and_slopes()[0] < 1e-3


@given(logs(), st.data())
def test_curvature_bounds_are_the_traces_of_the_second_derivatives_of_each_row(log, data):
    users, items = data.draw(tables(log.num_users)), data.draw(tables(log.num_items))
    a, b = users.weight.detach().double(), items.weight.detach().double()
    user_traces, item_traces = torch.zeros(users.num_rows), torch.zeros(items.num_rows)
    for r, k, _ in rows_and_targets(log, users, items):
        user_traces[r] += 2 * b[k] @ b[k]
        item_traces[k] += 2 * a[r] @ a[r]
    for form in FORMS:
        found = form(log, users, items).curvature_bounds()
        torch.testing.assert_close(found[0], user_traces, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1], item_traces, rtol=1e-4, atol=1e-5)


def _moments(rows):
    drawn = torch.randn(rows, DIM, DIM)
    return drawn + drawn.mT


def slow_equations(log, users, items, side, moments):
    """Σ moment and Σ x·row over the interactions of each row of one side."""
    tables = {"users": users, "items": items}
    own, other = tables[side], tables["users" if side == "items" else "items"]
    weight = other.weight.detach().double()
    matrices = torch.zeros(own.num_rows, *moments.shape[1:], dtype=torch.float64)
    right = torch.zeros(own.num_rows, DIM, dtype=torch.float64)
    for user, item, target in rows_and_targets(log, users, items):
        r, k = (user, item) if side == "users" else (item, user)
        matrices[r] += moments[k].double()
        right[r] += target * weight[k]
    return matrices, right


@settings(max_examples=50)
@given(logs(), st.sampled_from(["users", "items"]), st.data())
def test_normal_equations_are_those_of_a_loop_over_interactions(log, side, data):
    users, items = data.draw(tables(log.num_users)), data.draw(tables(log.num_items))
    own, other = (users, items) if side == "users" else (items, users)
    moments = _moments(other.num_rows)
    matrices, right = slow_equations(log, users, items, side, moments)
    ends = sorted(data.draw(st.tuples(*[st.integers(0, own.num_rows)] * 2)))
    for form in FORMS:
        collapsed = form(log, users, items)
        for rows in (slice(0, own.num_rows), slice(*ends)):
            found = collapsed.normal_equations(side, moments, rows)
            assert (found[0].dtype, found[1].dtype) == (torch.float32, torch.float32)
            torch.testing.assert_close(found[0].double(), matrices[rows], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found[1].double(), right[rows], rtol=1e-4, atol=1e-4)


@settings(max_examples=30)
@given(logs(), st.data())
def test_other_targets_take_the_place_of_those_of_the_log(log, data):
    users, items = data.draw(tables(log.num_users)), data.draw(tables(log.num_items))
    targets = np.random.default_rng(0).normal(size=len(log)).astype(np.float32)
    other = replace(log, target=targets)
    for form in FORMS:
        collapsed = form(log, users, items)
        check(collapsed, log, users, items)
        collapsed.retarget(targets)
        check(collapsed, other, users, items)
        assert collapsed.squares == pytest.approx(sum(x * x for x in targets.tolist()))
        for table in (users, items):
            if isinstance(table, ClusteredEmbedding):  # they stay through the moves
                move(table, data.draw)
                check(collapsed, other, users, items)
        moments = _moments(items.num_rows)
        _, found = collapsed.normal_equations("users", moments, slice(users.num_rows))
        _, right = slow_equations(other, users, items, "users", moments)
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


def test_one_cell_of_the_dense_form_may_have_more_interactions_than_float32_can_count():
    size = 2**24 + 2**22
    small = read({"user": [1], "item": [1], "rating": [3.3]})
    nobody = np.zeros(size, np.int32)
    log = type(small)(
        user=nobody,
        item=nobody,
        target=np.full(size, 3.3, np.float32),
        timestamp=None,
        user_ids=small.user_ids,
        item_ids=small.item_ids,
    )
    users, items = FullEmbedding(1, 1), FullEmbedding(1, 1)
    predicted = float(users.weight.detach()[0] @ items.weight.detach()[0])
    expected = size * (predicted - 3.3) ** 2
    loss, *_ = DensePairStatistics(log, users, items).loss_and_slopes()
    assert loss == pytest.approx(expected, rel=1e-5)


def test_the_form_is_dense_where_pairs_of_rows_are_few_for_the_log():
    log = Planted(rows=1_000, users=100, items=100, item_clusters=2).interactions()
    few = ClusteredEmbedding(log.num_users, 2, max_clusters=10)
    many = FullEmbedding(log.num_items, 2)
    assert type(make_pair_statistics(log, few, many)) is DensePairStatistics
    assert type(make_pair_statistics(log, many, many)) is SparsePairStatistics
    check(make_pair_statistics(log, few, many), log, few, many)


@st.composite
def grouped(draw):
    """Interactions of each id one after another: starts, partners and targets."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    total = sum(sizes)
    partners = draw(st.lists(st.integers(0, 3), min_size=total, max_size=total))
    targets = draw(st.lists(st.integers(-5, 5), min_size=total, max_size=total))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return starts, np.array(partners, np.int64), np.array(targets, np.float32)


@given(grouped(), st.integers(1, 5))
def test_candidate_losses_are_those_of_a_loop(interactions, clusters):
    starts, partners, targets = interactions
    predicted = np.random.default_rng(0).normal(size=(4, clusters)).astype(np.float32)
    losses = np.full((len(starts) - 1, clusters), np.nan, np.float32)
    candidate_losses(starts, partners, targets, predicted, losses)
    for own in range(len(starts) - 1):
        for k in range(clusters):
            terms = range(starts[own], starts[own + 1])
            expected = sum((targets[n] - predicted[partners[n], k]) ** 2 for n in terms)
            assert losses[own, k] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(grouped(), st.data())
def test_member_gradients_are_those_of_a_loop(interactions, data):
    starts, partners, targets = interactions
    ids = len(starts) - 1
    rng = np.random.default_rng(0)
    other, own = rng.normal(size=(4, DIM)), rng.normal(size=(2, DIM))
    rows = np.array(data.draw(st.lists(st.integers(0, 1), min_size=ids, max_size=ids)), np.int64)
    members = np.array(data.draw(st.lists(st.integers(0, ids - 1), unique=True)), np.int64)
    found = np.zeros((len(members), DIM))
    member_gradients(
        members,
        starts,
        partners,
        targets,
        rows,
        other.astype(np.float32),
        own.astype(np.float32),
        found,
    )
    for gradient, j in zip(found, members, strict=True):
        expected = np.zeros(DIM)
        for n in range(starts[j], starts[j + 1]):
            error = targets[n] - other[partners[n]] @ own[rows[j]]
            expected += 2 * error * other[partners[n]]
        assert np.allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@given(grouped(), st.data())
def test_the_equations_of_rows_in_the_middle_are_those_of_a_loop(interactions, data):
    starts, partners, sums = interactions
    ids = len(starts) - 1
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, ids)] * 2)))
    rng = np.random.default_rng(0)
    moments, weight = (rng.normal(size=(4, n)).astype(np.float32) for n in (DIM * DIM, DIM))
    counts = rng.integers(1, 5, len(partners)).astype(np.float32)
    matrices = np.zeros((last - first, DIM * DIM), np.float32)
    right = np.zeros((last - first, DIM), np.float32)
    normal_equations(starts, partners, counts, sums, moments, weight, first, matrices, right)
    for r in range(first, last):
        its = range(starts[r], starts[r + 1])
        matrix = sum((counts[n] * moments[partners[n]] for n in its), np.zeros(DIM * DIM))
        vector = sum((sums[n] * weight[partners[n]] for n in its), np.zeros(DIM))
        assert np.allclose(matrices[r - first], matrix, atol=1e-4)
        assert np.allclose(right[r - first], vector, atol=1e-4)
