from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, Planted, Split
from celrec.config.building import make_model
from celrec.config.offline import GibbsConfig, OfflineConfig, Schedule
from celrec.config.plan import Plan
from celrec.offline.gibbs import GibbsSampling, LowRankMean, truncated
from celrec.offline.row_solvers import draw_rows
from celrec.offline.training import OfflineTraining
from celrec.runtime.communicator import LOCAL
from tests.ranks import run_ranks


def planted(rows=3000, noise=0.3, **more):
    return Planted(rows, 60, 40, dim=2, noise=noise, seed=1, **more).interactions()


def sampler(log, rank=3, seed=0, **how):
    model = make_model(log, Plan("full", model="mf", rank=rank))
    solver = GibbsSampling(model, log, GibbsConfig(**how), seed)
    solver.start(seed)
    return solver


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_rows_are_drawn_from_their_conditional_distributions(count, dim, seed):
    rng = np.random.default_rng(seed)
    data, right = np.zeros((count, dim, dim), np.float32), np.zeros((count, dim), np.float32)
    for row in range(count):
        partners = rng.normal(size=(rng.integers(0, 5), dim))
        data[row] = partners.T @ partners
        right[row] = rng.normal(size=len(partners)) @ partners
    root = rng.normal(size=(dim, dim))
    precision, mean = root @ root.T + np.eye(dim), rng.normal(size=dim)
    weight, normals = 1.7, rng.normal(size=(count, dim))
    rows = np.zeros((count, dim), np.float32)
    loss = draw_rows(data, right, precision, precision @ mean, weight, normals, rows)
    expected = 0.0
    for row in range(count):
        joint = precision + weight * data[row]
        centre = np.linalg.solve(joint, precision @ mean + weight * right[row])
        # P = L·Lᵀ, so L⁻ᵀ·z has the covariance P⁻¹.
        drawn = centre + np.linalg.solve(np.linalg.cholesky(joint).T, normals[row])
        np.testing.assert_allclose(rows[row], drawn, atol=1e-4)
        expected += drawn @ data[row] @ drawn - 2 * right[row] @ drawn
    assert loss == pytest.approx(expected, rel=1e-3, abs=1e-3)


@given(st.integers(1, 9), st.integers(1, 8), st.integers(1, 6), st.integers(0, 99))
def test_truncation_is_the_best_that_its_rank_allows(users, items, rank, seed):
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(users, 5)), rng.normal(size=(items, 5))
    found = truncated(torch.tensor(left), torch.tensor(right), rank)
    assert [factor.shape for factor in found] == [(users, rank), (items, rank)]
    u, values, v = np.linalg.svd(left @ right.T, full_matrices=False)
    expected = u[:, :rank] * values[:rank] @ v[:rank]
    np.testing.assert_allclose(found[0] @ found[1].T, expected, atol=1e-8)


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 99))
def test_the_mean_of_products_is_kept_up_to_its_rank(draws, rank, seed):
    rng = np.random.default_rng(seed)
    mean, dense = LowRankMean(rank), np.zeros((7, 6))
    base = rng.normal(size=(7, rank)), rng.normal(size=(6, rank))
    for _ in range(draws):  # of one subspace, so that no truncation loses anything
        turn = rng.normal(size=(rank, rank))
        left, right = base[0] @ turn, base[1]
        mean.add(torch.tensor(left), torch.tensor(right))
        dense += left @ right.T / draws
    found = mean.factors(rank)
    np.testing.assert_allclose(found[0] @ found[1].T, dense, atol=1e-8)


def test_the_mean_predicts_better_than_any_draw_and_nears_the_noise():
    split = Split.random(planted(6000))
    solver = sampler(split.train, burn_in=10)
    for _ in range(10):
        solver.step()
    solver.meet()
    draw = solver.loss(split.test)
    for _ in range(60):
        solver.step()
    solver.meet()
    noise = 0.3**2
    assert 0 < solver.loss(split.test) - noise < 0.75 * (draw - noise)


def test_the_model_has_the_mean_of_the_draws():
    """Against draws whose predictions are averaged one by one."""
    log = planted()
    solver, dense = sampler(log, rank=2, burn_in=3), 0.0
    users, items = torch.arange(60), torch.arange(40)
    for step in range(1, 13):
        solver.step()
        if step <= 3:
            continue
        rows = solver.state_dict()["rows"]
        a, b = rows["users"][:60], rows["items"][:40]
        drawn = a[:, :-1] @ b[:, :-1].T + a[:, -1:] + b[:, -1] + solver.model.biases.mean
        # The draw that ended the burn-in counts as well.
        dense = dense + drawn / 10
    first = sampler(log, rank=2, burn_in=3)
    for _ in range(3):
        first.step()
    rows = first.state_dict()["rows"]
    a, b = rows["users"][:60], rows["items"][:40]
    dense = dense + (a[:, :-1] @ b[:, :-1].T + a[:, -1:] + b[:, -1] + first.model.biases.mean) / 10
    solver.meet()
    model = solver.model
    found = model.model(model.users(users)[:, None], model.items(items)[None]).detach()
    # Draws differ in few directions only, so a rank of 2 leaves little over.
    assert float((found - dense).square().mean()) < 0.02 * float(dense.var())


def test_the_same_seed_gives_the_same_draws_and_another_seed_others():
    log = planted()
    first, second, other = (sampler(log, seed=seed) for seed in (0, 0, 1))
    for solver in (first, second, other):
        for _ in range(3):
            solver.step()
    rows = [solver.state_dict()["rows"]["items"] for solver in (first, second, other)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_going_on_from_a_state_is_as_never_having_stopped(stop):
    log = planted()
    whole, begun, resumed = (sampler(log, burn_in=3) for _ in range(3))
    for _ in range(8):
        whole.step()
    for _ in range(stop):
        begun.step()
    resumed.load_state_dict(begun.state_dict())
    for _ in range(8 - stop):
        resumed.step()
    whole.meet()
    resumed.meet()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_the_scale_of_the_targets_does_not_matter():
    log = planted()
    large = replace(log, target=100 * log.target)
    first, second = sampler(log), sampler(large)
    for _ in range(30):
        first.step()
        second.step()
    first.meet()
    second.meet()
    expected, found = 100 * first.model.predict(log), second.model.predict(large)
    assert float((found - expected).std()) < 0.03 * float(expected.std())


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_few_interactions_are_enough_to_predict_something(rows):
    log = planted()[np.arange(rows)]
    solver = sampler(log, burn_in=2)
    for _ in range(5):
        solver.step()
    solver.meet()
    assert bool(solver.model.predict(planted()).isfinite().all())


def test_equal_targets_are_predicted():
    log = planted()
    log = replace(log, target=np.full_like(log.target, 3.0))
    solver = sampler(log, burn_in=5)
    for _ in range(20):
        solver.step()
    solver.meet()
    assert float((solver.model.predict(log) - 3).abs().max()) < 0.2


def test_an_unseen_id_has_the_mean_of_the_prior():
    log = planted()
    solver = sampler(log, burn_in=5)
    for _ in range(20):
        solver.step()
    solver.meet()
    model = solver.model
    ids = torch.arange(60)
    unseen = model.users(torch.tensor(-1))
    deviation = model.users(ids).std(0) / 60**0.5
    assert bool(((unseen - model.users(ids).mean(0)).abs() < 6 * deviation + 0.05).all())


def test_tables_that_are_not_full_are_refused():
    log = planted()
    for plan in (Plan("full", rank=3), Plan("cel", "4", model="mf", rank=3)):
        with pytest.raises(CelrecError, match="Gibbs sampling needs a full table with biases"):
            GibbsSampling(make_model(log, plan), log, GibbsConfig())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"burn_in": -1}, "burn_in must not be negative, not -1"),
        ({"prior_rows": 0}, "prior_rows must be positive, not 0"),
        ({"strength": 0}, "strength must be positive, not 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(CelrecError, match=message):
        GibbsConfig(**wrong)


def trained(communicator):
    log = planted()
    model = make_model(log, Plan("full", model="mf", rank=3))
    schedule = Schedule(steps=6, split_every=0, reassign_every=0, validate_every=3)
    how = OfflineConfig(solver=GibbsConfig(burn_in=2), schedule=schedule)
    training = OfflineTraining(model, log, log[:0], how, communicator)
    training.start()
    training.run()
    return dict(model.state_dict())


def test_two_processes_draw_what_one_does(tmp_path):
    expected = trained(LOCAL)
    first, second = run_ranks(2, tmp_path, trained)
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, rtol=1e-2, atol=1e-2, msg=name)
        assert torch.equal(first[name], second[name])
