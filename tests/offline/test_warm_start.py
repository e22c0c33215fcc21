import numpy as np
import pytest
import torch

from celrec import CelrecError, Plan, Planted, Split, fit
from celrec.config.building import make_model
from celrec.config.offline import CompressionConfig
from celrec.config.plan import FULL_START_BYTES
from celrec.data.histories import Grouped
from celrec.offline import warm_start
from celrec.offline.gibbs import Summands
from celrec.offline.warm_start import Prior, WarmFit, warmest, within


@pytest.fixture(scope="module")
def log():
    return Planted(4000, 80, 60, dim=2, item_clusters=8, noise=0.3, seed=2).interactions()


def model_of(log, **more):
    return make_model(log, Plan(model="mf", rank=3, compression="12", start="warm", **more))


@pytest.mark.parametrize("side", ["users", "items", "both"])
def test_the_scaffold_has_the_warmest_ids_of_compressed_tables(log, side):
    warm = warmest(log, model_of(log, side=side))
    for name, ids, counts in (
        ("users", warm.user_ids, log.user_counts),
        ("items", warm.item_ids, log.item_counts),
    ):
        every = log.user_ids if name == "users" else log.item_ids
        known = every.encode(ids.ids)
        if side in (name, "both"):
            assert len(known) <= 12
            least = np.sort(counts)[-12]
            assert (counts[known] >= least).all()
        else:
            assert set(known) <= set(np.flatnonzero(counts))


def test_the_scaffold_of_levels_has_as_many_ids_as_all_levels_have_rows(log):
    assert warmest(log, model_of(log, levels=3)).num_items == 12


def test_other_data_are_numbered_as_the_scaffold_is(log):
    warm = warmest(log, model_of(log))
    other = log[np.arange(0, len(log), 7)]
    part = within(other, warm)
    items = set(warm.item_ids.ids)
    expected = [row for row in other.to_frame().iter_rows() if row[1] in items]
    assert list(part.to_frame().iter_rows()) == expected
    assert (part.num_users, part.num_items) == (warm.num_users, warm.num_items)


def test_normal_equations_are_sums_over_interactions(log):
    """Against a loop, with partners whose vectors are sums of rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2, 5, 3)).astype(np.float32)
    codes = rng.integers(0, 5, (log.num_users, 2)).astype(np.int32)
    group, targets = Grouped(log, "items"), rng.normal(size=len(log)).astype(np.float32)
    ids = np.array([7, 3, log.num_items, 11])  # the third one has no interactions
    matrices, right = Summands(rows, codes).normal_equations(group, targets, ids)
    for place, item in enumerate(ids):
        matrix, sums = np.zeros((4, 4)), np.zeros(4)
        stop = 0 if item == log.num_items else group.starts[item + 1]
        for n in range(0 if item == log.num_items else group.starts[item], stop):
            partner = int(group.partners[n])
            x = np.append(sum(rows[level, codes[partner, level]] for level in range(2)), 1.0)
            matrix += np.outer(x, x)
            sums += targets[n] * x
        np.testing.assert_allclose(matrices[place], matrix, atol=1e-3)
        np.testing.assert_allclose(right[place], sums, atol=1e-3)


def test_a_prior_has_the_moments_of_its_rows():
    rows = torch.tensor(np.random.default_rng(0).normal(1, 2, (500, 3)))
    prior = Prior.of(rows)
    np.testing.assert_allclose(prior.mean, rows.mean(0), atol=1e-9)
    covariance = np.linalg.inv(prior.precision)
    np.testing.assert_allclose(covariance, np.cov(rows.T.numpy()), atol=0.1)


@pytest.mark.parametrize("side", ["items", "users", "both"])
@pytest.mark.parametrize("levels", [1, 2])
def test_it_learns_within_the_rows_that_are_allowed(log, side, levels):
    split = Split.random(log)
    plan = Plan(model="mf", rank=3, compression="12", side=side, levels=levels, start="warm")
    fitted = fit(split, plan)
    error = (fitted.model.predict(split.test) - torch.tensor(split.test.target)).square().mean()
    assert float(error) < 0.6 * float(split.test.target.var())
    for name, table in fitted.model.tables.items():
        if side in (name, "both"):
            assert table.num_rows <= 12
            # The scaffold, its draws and their mean: never a row for each id.
            assert fitted.training_bytes[name] <= 4 * 13 * (2 * 4 + 1 + 4 * 3)


def test_known_clusters_are_found_by_folding_in():
    log = Planted(
        30_000, 150, 200, dim=3, item_clusters=10, noise=0.0, user_skew=0.1, item_skew=0.3, seed=1
    ).interactions()
    split = Split.random(log)
    plan = Plan(model="mf", rank=4, compression="20", start="warm")
    model = fit(split, plan).model
    error = (model.predict(split.test) - torch.tensor(split.test.target)).square().mean()
    assert float(error) < 0.01 * float(split.test.target.var())


def test_the_same_seed_gives_the_same_model(log):
    split = Split.random(log)
    plan = Plan(model="mf", rank=3, compression="6", levels=2, start="warm")
    first, second = (fit(split, plan).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_it_is_the_default_where_a_full_fit_takes_too_much(log, monkeypatch):
    assert FULL_START_BYTES == 4 << 30
    split, plan = Split.random(log), Plan(model="mf", rank=3, compression="6")
    warm = fit(split, Plan(model="mf", rank=3, compression="6", start="warm")).model.state_dict()
    monkeypatch.setattr(warm_start, "FULL_START_BYTES", 1000)
    found = fit(split, plan).model.state_dict()
    assert all(torch.equal(found[name], warm[name]) for name in warm)


def test_wrong_models_are_refused(log):
    with pytest.raises(CelrecError, match="start 'warm' is for model 'mf', not 'nmf'"):
        Plan(model="nmf", start="warm")
    model = make_model(log, Plan(model="nmf", rank=3, compression="6"))
    full = make_model(log, Plan("full", model="mf", rank=3))
    with pytest.raises(CelrecError, match="start 'warm' needs biases; take model 'mf'"):
        WarmFit(model, full, log, log, 1.0, CompressionConfig())
