import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import BiasModel, Planted, read
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.offline.factorisation_solver import Residuals
from celrec.offline.kernels import unexplained_sums
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from tests.data.logs import logs
from tests.offline.test_collapse import DIM, grouped, tables


@pytest.fixture(autouse=True)
def seeded_rows():
    torch.manual_seed(0)


class SlowBiases:
    """μ and the biases in double precision, fitted by a loop over interactions."""

    def __init__(self, model, log, l2):
        self.log, self.l2 = log, l2
        mean, users, items = (bias.detach().double().numpy().copy() for bias in model.biases)
        self.mean, self.users, self.items = float(mean), users, items

    def start(self):
        self.mean = sum(self.log.target.tolist()) / len(self.log)

    def fit(self, explained):
        """`explained` is the dot product of each interaction."""
        for side, bias in (("item", self.items), ("user", self.users)):
            own = getattr(self.log, side)
            left = self.targets() - explained + bias[own]
            for j in range(len(bias) - 1):
                its = [left[n] for n in range(len(left)) if own[n] == j]
                bias[j] = sum(its) / (len(its) + self.l2) if its else 0.0

    def targets(self):
        """What is left of each interaction."""
        triples = zip(self.log.user, self.log.item, self.log.target.tolist(), strict=True)
        return np.array([x - self.mean - self.users[u] - self.items[i] for u, i, x in triples])


def dots(model, log):
    """a·b of each interaction."""
    a = model.user_rows(torch.tensor(log.user)).detach().double()
    b = model.item_rows(torch.tensor(log.item)).detach().double()
    return (a * b).sum(1).numpy()


def close(found, wanted):
    return np.allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-4)


@st.composite
def biased_models(draw, log):
    """Tables of any kind, with biases of any size."""
    sides = (draw(tables(size, spare=0)) for size in (log.num_users, log.num_items))
    model = Model(*map(BiasedEmbedding, sides))
    with torch.no_grad():
        for bias in model.biases:
            bias.normal_()
    return model


@settings(max_examples=40)
@given(logs(), st.floats(0, 20), st.data())
def test_biases_are_those_of_a_loop_over_interactions(log, l2, data):
    model = data.draw(biased_models(log))
    part = log[: data.draw(st.integers(1, len(log)))]  # some ids may have no interactions
    unseen = [float(bias.detach()[-1]) for bias in (model.biases.users, model.biases.items)]
    fast, slow = Residuals(model, part, l2), SlowBiases(model, part, l2)
    assert close(fast.target, slow.targets())
    if data.draw(st.booleans()):
        fast.start()
        slow.start()
        assert close(fast.target, slow.targets())
    for _ in range(2):
        fast.fit_biases()
        slow.fit(dots(model, part))
        assert close(model.biases.mean, slow.mean)
        assert close(model.biases.users.detach(), slow.users)
        assert close(model.biases.items.detach(), slow.items)
        assert close(fast.target, slow.targets())
    assert fast.target.dtype == np.float32
    assert unseen == [float(bias.detach()[-1]) for bias in (model.biases.users, model.biases.items)]


@settings(max_examples=30)
@given(logs(), st.data())
def test_what_is_left_is_what_the_model_misses_without_its_factors(log, data):
    model = data.draw(biased_models(log))
    residuals = Residuals(model, log)
    missed = log.target - model.predict(log).numpy()
    assert close(residuals.target - dots(model, log), missed)


def biased(log, dim=DIM):
    return Model(
        BiasedEmbedding(FullEmbedding(log.num_users, dim)),
        BiasedEmbedding(FullEmbedding(log.num_items, dim)),
    )


def test_without_factors_the_biases_become_those_of_the_bias_model():
    log = Planted(rows=2000, users=40, items=30, dim=3).interactions()
    model = biased(log)
    with torch.no_grad():
        model.user_rows.weight.zero_()
    residuals = Residuals(model, log, 3.0)
    residuals.start()
    for _ in range(100):
        residuals.fit_biases()
    plain = BiasModel.fit(log, 3.0)
    assert np.allclose(model.predict(log), plain.predict(log), atol=1e-4)
    assert float(model.biases.mean) == pytest.approx(plain.mean)


def test_the_strength_shrinks_towards_nothing():
    log = read({"user": [1, 2, 3], "item": [1, 1, 1], "rating": [6.0, 6.0, 6.0]})
    found = []
    for l2 in (0.0, 3.0, 1e9):
        model = biased(log)
        with torch.no_grad():
            model.user_rows.weight.zero_()
        Residuals(model, log, l2).fit_biases()
        found.append(float(model.biases.items[0].detach()))
    assert found == pytest.approx([6.0, 3.0, 0.0], abs=1e-6)


def test_a_pair_that_repeats_counts_each_time():
    log = read({"user": [1, 1, 1], "item": [1, 1, 1], "rating": [1.0, 2.0, 6.0]})
    model = biased(log)
    with torch.no_grad():
        model.item_rows.weight.zero_()
    Residuals(model, log, 1.0).fit_biases()
    # The item explains 9 / 4, the user of what is left as much as it can.
    assert float(model.biases.items[0].detach()) == pytest.approx(9 / 4)
    assert float(model.biases.users[0].detach()) == pytest.approx((9 - 3 * 9 / 4) / 4)


@pytest.mark.parametrize("l2", [0.0, 5.0])
def test_an_id_without_interactions_has_no_bias(l2):
    log = read({"user": [1, 2, 3], "item": [1, 2, 3], "rating": [1.0, 2.0, 3.0]})[:2]
    model = biased(log)
    with torch.no_grad():
        model.biases.users.fill_(0.5)
    Residuals(model, log, l2).fit_biases()
    assert float(model.biases.users[2].detach()) == float(model.biases.items[2].detach()) == 0
    assert torch.isfinite(model(Batch.pairs(torch.arange(3), torch.arange(3)))).all()


def test_each_change_of_the_targets_is_counted():
    log = Planted(rows=100, users=10, items=8, dim=2, item_clusters=3).interactions()
    model = biased(log)
    residuals = Residuals(model, log)
    for change in (residuals.start, residuals.fit_biases, residuals.refresh):
        version, before = residuals.version, residuals.target
        with torch.no_grad():
            model.biases.users.add_(1)
        change()
        assert residuals.version > version
        assert not np.array_equal(residuals.target, before)


def test_refreshing_takes_up_biases_that_were_changed():
    log = Planted(rows=100, users=10, items=8, dim=2, item_clusters=3).interactions()
    model = biased(log)
    residuals = Residuals(model, log)
    with torch.no_grad():
        model.biases.users.add_(1)
        model.biases.mean.add_(2)
    assert np.array_equal(residuals.target, log.target)
    residuals.refresh()
    assert np.allclose(residuals.target, log.target - 3)


def test_starting_sets_the_mean_and_leaves_the_biases():
    log = read({"user": [1, 2], "item": [1, 2], "rating": [2.0, 5.0]})
    model = biased(log)
    with torch.no_grad():
        model.biases.users.add_(1)
    residuals = Residuals(model, log)
    residuals.start()
    assert float(model.biases.mean) == 3.5
    assert model.biases.users.tolist() == [1, 1, 1]
    assert residuals.target.tolist() == [-2.5, 0.5]


def test_without_biases_there_is_nothing_to_fit():
    log = Planted(rows=100, users=10, items=8, dim=2, item_clusters=3).interactions()
    model = Model(FullEmbedding(10, DIM), FullEmbedding(8, DIM))
    before = model.predict(log)
    residuals = Residuals(model, log)
    residuals.start()
    residuals.fit_biases()
    residuals.refresh()
    assert residuals.version == 0
    assert residuals.target is log.target
    assert torch.equal(model.predict(log), before)


def test_an_empty_log_leaves_finite_biases():
    log = read({"user": [1], "item": [1], "rating": [2.0]})[:0]
    model = biased(log)
    residuals = Residuals(model, log)
    residuals.start()
    residuals.fit_biases()
    assert all(torch.isfinite(bias).all() for bias in model.biases)


@given(grouped(), st.data())
def test_unexplained_sums_are_those_of_a_loop(interactions, data):
    starts, partners, targets = interactions
    ids = len(starts) - 1
    rng = np.random.default_rng(0)
    other, own = (rng.normal(size=(size, DIM)).astype(np.float32) for size in (4, 2))
    rows = np.array(data.draw(st.lists(st.integers(0, 1), min_size=ids, max_size=ids)), np.int64)
    sums = np.full(ids, np.nan)
    unexplained_sums(starts, partners, targets, rows, other, own, sums)
    for j in range(ids):
        its = range(starts[j], starts[j + 1])
        expected = sum(targets[n] - float(other[partners[n]] @ own[rows[j]]) for n in its)
        assert sums[j] == pytest.approx(expected, abs=1e-4)
