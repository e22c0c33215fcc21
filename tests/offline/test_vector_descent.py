import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from celrec import CelrecError, Planted
from celrec.config.offline import ComposedConfig, LeastSquaresConfig
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.compositional import CompositionalEmbedding
from celrec.embeddings.embedding import Embedding, Memory
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.offline.factorisation_solver import initialise_factors
from celrec.offline.least_squares import AlternatingLeastSquares, VectorDescent
from celrec.offline.pair_statistics import make_pair_statistics
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.recommender.vectors import Materialised
from celrec.runtime.state_file import load_state, save_state
from tests.data.logs import logs
from tests.offline.test_least_squares import best_non_negative

DIM = 3
STILL = ComposedConfig(steps=1, learning_rate=1e-30, l2=0.0)
"""A sweep that looks at everything and moves nothing."""
NOISE = 0.5
LONG = ComposedConfig(steps=300, learning_rate=0.05, l2=0.0, decay=0.3)


@pytest.fixture(autouse=True)
def seeded_rows():
    torch.manual_seed(0)


class Plain(Embedding):
    """A row for each id, which nobody can tell from outside."""

    def __init__(self, ids, dim, pull=0.0):
        super().__init__(ids, dim)
        self.table = nn.Parameter(torch.randn(ids, dim))
        self.pull = pull
        self.told = []

    def vectors(self, ids):
        self.told.append(("looked up", self.training))
        seen = (ids >= 0) & (ids < self.num_embeddings)
        return torch.where(seen.unsqueeze(-1), self.table[torch.where(seen, ids, 0)], 0.0)

    def penalty(self):
        return self.pull / 2 * self.table.square().sum() if self.pull else None

    def adapt(self, optimizer=None):
        self.told.append(("adapted", self.training, optimizer))

    def memory(self, *, training=False):
        del training
        return Memory(self.table.nbytes, 0)


def plain(ids, **_):
    return Plain(ids, DIM)


def binary_code(ids):
    return BinaryCodeEmbedding(ids, DIM, rows=6)


def compositional(ids):
    return CompositionalEmbedding(ids, DIM, rows=6)


def prehash(ids):
    return PreHashEmbedding(ids, DIM, rows=4, k=2, pull=0.0, explorations=0)


def exploring(ids):
    """After each sweep, rows in the mixtures may be others."""
    return PreHashEmbedding(ids, DIM, rows=4, k=2)


KINDS = [plain, binary_code, compositional, prehash]


class Problem:
    """Items with vectors that are put together, and users with a row each."""

    def __init__(self, log, items, how=STILL, strength=1.0, non_negative=False):
        self.log = log
        self.model = Model(FullEmbedding(log.num_users, DIM), items)
        self.source, self.view = items, self.model.item_rows
        self.collapsed = make_pair_statistics(log, self.model.user_rows, self.view)
        weight = self.model.user_rows.weight.detach()
        self.moments = weight[:, :, None] * weight[:, None, :]
        self.descent = VectorDescent(self.view, how, strength=strength, non_negative=non_negative)

    def equations(self, rows):
        return self.collapsed.normal_equations("items", self.moments, rows)

    def sweep(self, times=1, size=10**6):
        """Gives what the last sweep gave."""
        batches = [
            slice(start, min(start + size, self.view.num_rows))
            for start in range(0, self.view.num_rows, size)
        ]
        for _ in range(times):
            left = self.descent.sweep(batches, self.equations, NOISE)
        return left

    def squared_error(self):
        """Interaction by interaction."""
        with torch.no_grad():
            users = self.model.users(torch.arange(self.log.num_users)).tolist()
        items, total = self.vectors().tolist(), 0.0
        for user, item, target in zip(self.log.user, self.log.item, self.log.target, strict=True):
            dot = sum(a * b for a, b in zip(users[user], items[item], strict=True))
            total += (dot - float(target)) ** 2
        return total

    def best(self, ridge=0.0, solve=np.linalg.solve):
        """The vectors with the least Σ vᵀ(D + ridge·I)v − 2·dᵀv, one by one."""
        users = self.model.users.weight.detach().double().numpy()
        found = []
        for item in range(self.log.num_items):
            own = self.log.item == item
            rows = users[self.log.user[own]]
            matrix = rows.T @ rows + ridge * np.eye(DIM)
            found.append(solve(matrix, rows.T @ self.log.target[own]))
        return torch.tensor(np.array(found), dtype=torch.float32)

    def vectors(self):
        with torch.no_grad():
            return self.source(torch.arange(self.log.num_items))


def planted():
    return Planted(
        rows=600, users=30, items=9, dim=2, item_clusters=4, noise=0.3, item_skew=0.0
    ).interactions()


@given(logs(), st.sampled_from(KINDS), st.integers(0, 1000))
@settings(max_examples=50)
def test_what_is_lowered_is_the_squared_error_but_for_a_constant(log, kind, seed):
    torch.manual_seed(seed)
    problem = Problem(log, kind(log.num_items))
    constant = float(np.square(log.target, dtype=np.float64).sum())
    for _ in range(2):
        left = problem.sweep()
        assert left + constant == pytest.approx(
            problem.squared_error(), rel=1e-4, abs=1e-5 * (1 + constant)
        )
        with torch.no_grad():
            for parameter in problem.source.parameters():
                parameter.copy_(torch.randn_like(parameter))


@given(logs(), st.sampled_from(KINDS), st.integers(0, 1000))
@settings(max_examples=50)
def test_the_gradient_is_that_of_the_plain_loss(log, kind, seed):
    torch.manual_seed(seed)
    problem = Problem(log, kind(log.num_items))
    problem.sweep()
    found = {name: p.grad.clone() for name, p in problem.source.named_parameters()}
    problem.source.zero_grad()
    model = problem.model
    user, item = torch.tensor(log.user), torch.tensor(log.item)
    (model(Batch.pairs(user, item)) - torch.tensor(log.target)).square().sum().backward()
    for name, parameter in problem.source.named_parameters():
        scale = 1 + float(parameter.grad.abs().max())
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_lowers_it(kind):
    log = planted()
    problem = Problem(
        log, kind(log.num_items), ComposedConfig(steps=10, learning_rate=0.01, l2=0.0)
    )
    before = problem.squared_error()
    for _ in range(4):
        left = problem.sweep()
        assert problem.squared_error() < before
        before = problem.squared_error()
    constant = float(np.square(log.target, dtype=np.float64).sum())
    assert left + constant == pytest.approx(before, rel=1e-4)


def test_with_a_row_for_each_id_it_comes_to_the_least_squares_solution():
    problem = Problem(planted(), Plain(9, DIM), LONG)
    problem.sweep(5)
    torch.testing.assert_close(problem.vectors(), problem.best(), rtol=1e-3, atol=1e-3)


def test_with_a_penalty_it_comes_to_the_ridge_solution():
    """D + σ²·l2·I, and half of strength·pull more by the penalty of the table."""
    how = replace(LONG, l2=7.0)
    problem = Problem(planted(), Plain(9, DIM, pull=4.0), how, strength=3.0)
    problem.sweep(5)
    ridge = NOISE * 7 + 3 * 4 / 2
    torch.testing.assert_close(problem.vectors(), problem.best(ridge), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(problem.vectors(), problem.best(), rtol=0.05)


def test_non_negative_it_comes_to_the_best_solution_that_is():
    problem = Problem(planted(), Plain(9, DIM), LONG, non_negative=True)
    problem.sweep(5)
    best = problem.best(solve=best_non_negative)
    assert best.eq(0).any()
    torch.testing.assert_close(problem.vectors(), best, rtol=1e-3, atol=1e-3)


@given(logs(), st.sampled_from(KINDS), st.integers(0, 1000))
@settings(max_examples=50)
def test_what_must_not_be_negative_never_is(log, kind, seed):
    torch.manual_seed(seed)
    how = ComposedConfig(steps=3, learning_rate=0.5)
    problem = Problem(log, kind(log.num_items), how, non_negative=True)
    initialise_factors(problem.model, torch.Generator().manual_seed(seed))
    for _ in range(4):
        with torch.no_grad():
            problem.model.users.weight.mul_(-1)  # so that vectors are drawn below 0 and back
        problem.sweep()
        assert problem.vectors().ge(0).all()
        assert problem.view.weight.ge(0).all()
        assert all(p.ge(0).all() for p in problem.source.non_negative_parameters())


def test_without_a_bound_values_may_be_negative():
    problem = Problem(planted(), Plain(9, DIM), LONG)
    problem.sweep(5)
    assert problem.vectors().lt(0).any()


# What happens around the steps.


def test_each_step_looks_up_in_training_and_adapt_is_called_once_after_all():
    problem = Problem(planted(), Plain(9, DIM), ComposedConfig(steps=4))
    for _ in range(2):
        problem.source.told.clear()
        problem.sweep()
        told = problem.source.told
        adapted = ("adapted", False, problem.descent.optimizer)
        assert told == [*[("looked up", True)] * 5, adapted, ("looked up", False)]
        assert not problem.source.training


def test_what_adapt_changes_is_shown_and_stays_non_negative():
    class Moving(Plain):
        @torch.no_grad()
        def adapt(self, optimizer=None):
            del optimizer
            self.table.sub_(100)
            self.table[0] += 200

    problem = Problem(planted(), Moving(9, DIM), ComposedConfig(), non_negative=True)
    problem.sweep()
    assert problem.view.weight[0].gt(90).all()
    assert problem.view.weight[1:].eq(0).all()
    assert torch.equal(problem.view.weight[:-1], problem.source.table)


def test_the_learning_rate_falls_from_sweep_to_sweep():
    problem = Problem(planted(), Plain(9, DIM), ComposedConfig(learning_rate=0.2, decay=0.5))
    rates = []
    for _ in range(3):
        problem.sweep()
        rates.append(problem.descent.optimizer.param_groups[0]["lr"])
    assert rates == [0.2, 0.1, 0.05]


def test_the_rows_that_others_see_are_the_new_vectors():
    log = planted()
    for kind in (*KINDS, exploring):
        problem = Problem(log, kind(log.num_items), ComposedConfig())
        before = problem.view.weight.clone()
        problem.sweep()
        assert torch.equal(problem.view(torch.arange(9)), problem.vectors())
        assert not torch.equal(problem.view.weight, before)


@pytest.mark.parametrize("size", [5, 9])
def test_batches_of_rows_come_to_the_same_sum_and_the_same_solution(size):
    """With 9 ids and the row of unseen ones, the last batch may hold nobody."""
    whole = Problem(planted(), Plain(9, DIM))
    parts = Problem(planted(), copy.deepcopy(whole.source))
    with torch.no_grad():
        parts.model.users.weight.copy_(whole.model.users.weight)
    parts.moments = whole.moments
    assert parts.sweep(size=size) == pytest.approx(whole.sweep(), rel=1e-5)
    # Batches take turns, so that each has to find its way again after the others' steps.
    parts.descent = VectorDescent(parts.view, LONG, strength=1.0, non_negative=False)
    parts.sweep(6, size=size)
    torch.testing.assert_close(parts.vectors(), whole.best(), rtol=1e-2, atol=1e-2)


def test_penalties_count_once_in_a_sweep_however_many_batches_there_are():
    """With one step, the gradients of all batches add up to that of the whole."""
    found = []
    for size in (10, 5):
        torch.manual_seed(0)
        problem = Problem(planted(), Plain(9, DIM, pull=4.0), replace(STILL, l2=7.0))
        slopes = []
        problem.descent.optimizer.register_step_pre_hook(
            lambda *_, to=slopes, table=problem.source.table: to.append(table.grad.clone())
        )
        problem.sweep(size=size)
        found.append(sum(slopes))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)


def test_equations_are_asked_for_once_in_a_sweep_and_none_is_for_the_unseen_row():
    problem = Problem(planted(), Plain(9, DIM), ComposedConfig(steps=7))
    asked = []

    def equations(rows):
        asked.append(rows)
        return problem.equations(rows)

    batches = [slice(0, 4), slice(4, 8), slice(8, 10)]
    problem.descent.sweep(batches, equations, NOISE)
    assert asked == batches
    asked.clear()
    problem.descent.sweep([slice(0, 9), slice(9, 10)], equations, NOISE)
    assert asked == [slice(0, 9)]


# Going on.


@pytest.mark.parametrize("kind", [*KINDS, exploring])
@pytest.mark.parametrize("non_negative", [False, True])
def test_going_on_from_a_saved_state_is_never_to_have_stopped(kind, non_negative, tmp_path):
    log = planted()
    how = ComposedConfig(steps=5, learning_rate=0.1, decay=0.8)

    def make(seed):
        torch.manual_seed(seed)
        return Problem(log, kind(log.num_items), how, non_negative=non_negative)

    one, two = make(0), make(1)
    one.sweep(3)
    save_state(
        tmp_path / "state", {"model": one.model.state_dict(), "descent": one.descent.state_dict()}
    )
    state = load_state(tmp_path / "state")
    two.model.load_state_dict(state["model"])
    two.moments = one.moments
    two.descent.load_state_dict(state["descent"])
    for _ in range(3):
        assert one.sweep() == two.sweep()
    for name, value in one.model.state_dict().items():
        assert torch.equal(two.model.state_dict()[name], value), name


@pytest.mark.parametrize("kind", [*KINDS, exploring])
@pytest.mark.parametrize("uncertainty", [False, True])
@pytest.mark.parametrize("side", ["items", "both"])
def test_least_squares_with_such_a_table_goes_on_as_if_it_had_never_stopped(
    kind, uncertainty, side, tmp_path
):
    log = planted()
    how = LeastSquaresConfig(non_negative=True, uncertainty=uncertainty)

    def make(seed):
        torch.manual_seed(seed)
        users = kind(log.num_users) if side == "both" else FullEmbedding(log.num_users, DIM)
        model = Model(users, kind(log.num_items))
        return model, AlternatingLeastSquares(model, log, how)

    (one, first), (two, second) = make(0), make(1)
    first.start(0)
    for _ in range(3):
        first.step()
    save_state(tmp_path / "state", {"model": one.state_dict(), "solver": first.state_dict()})
    state = load_state(tmp_path / "state")
    two.load_state_dict(state["model"])
    second.load_state_dict(state["solver"])
    for _ in range(3):
        assert first.step() == second.step()
    for name, value in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], value), name


@pytest.mark.parametrize("kind", [*KINDS, exploring])
@pytest.mark.parametrize("how", [LeastSquaresConfig(uncertainty=False), LeastSquaresConfig()])
def test_least_squares_on_both_sides_explains_planted_ratings(kind, how):
    log = planted()
    model = Model(FullEmbedding(log.num_users, DIM), kind(log.num_items))
    solver = AlternatingLeastSquares(model, log, how)
    solver.start(0)
    losses = [solver.step() for _ in range(25)]
    assert losses[-1] < 0.3 * float(np.var(log.target)) * len(log)
    assert losses[-1] < losses[1]


def test_a_source_that_is_lent_to_a_view_is_learned_in_place():
    source = Plain(9, DIM)
    problem = Problem(planted(), source, ComposedConfig())
    before = source.table.detach().clone()
    problem.sweep()
    assert isinstance(problem.view, Materialised)
    assert problem.view.source is source
    assert not torch.equal(source.table, before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps must be positive, not 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive, not nan"),
        ({"l2": -1.0}, "l2 must not be negative, not -1.0"),
        ({"l2": float("nan")}, "l2 must not be negative, not nan"),
        ({"decay": 0.0}, r"decay must lie in \(0, 1\], not 0.0"),
        ({"decay": 1.5}, r"decay must lie in \(0, 1\], not 1.5"),
    ],
)
def test_wrong_settings_are_told(wrong, message):
    with pytest.raises(CelrecError, match=message):
        ComposedConfig(**wrong)
