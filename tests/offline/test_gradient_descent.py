import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, load_dataset
from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.cel.clusterer import Clusterer
from celrec.cel.reassignment import Reassignment
from celrec.config.offline import OPTIMISERS, DescentConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.offline.factorisation_solver import DotProductEvidence, initialise_factors
from celrec.offline.gradient_descent import GradientDescent
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from tests.offline.test_least_squares import assert_resumes
from tests.offline.test_residuals import SlowBiases


class PlainDescent:
    """The obvious step: autograd through every interaction, penalties as they are written."""

    def __init__(self, model, log, how):
        self.model, self.how = model, how
        self.samples = Batch.of_log(log, (), None)
        self.tables = (model.user_rows, model.item_rows)
        self.anchors = [table.weight.detach().clone() for table in self.tables]
        self.biases, self.steps = SlowBiases(model, log, how.l2_biases) if model.biases else None, 0
        weights = [table.weight for table in self.tables]
        self.optimizer = OPTIMISERS[how.optimiser](weights, lr=how.learning_rate)

    def objective(self, _=None):
        return (self.model(self.samples) - self.samples.target).square()

    def fit_biases(self):
        biases = self.model.biases
        with torch.no_grad():
            known = biases.mean + biases.users[self.samples.user] + biases.items[self.samples.item]
            self.biases.fit((self.model(self.samples) - known).double().numpy())
            biases.users.copy_(torch.tensor(self.biases.users))
            biases.items.copy_(torch.tensor(self.biases.items))

    def penalty(self, table, anchor):
        rows, how = table.weight[: table.num_rows], self.how
        penalty = how.l2 / 2 * rows.square().sum()
        if isinstance(table, ClusteredEmbedding):
            penalty = penalty + how.shrink_to_mean * (rows - rows.mean(0)).square().sum()
            for child in range(table.num_rows):
                parent = int(table.parent[child])
                if parent >= 0:
                    gap = rows[child] - rows[parent]
                    penalty = penalty + how.shrink_to_parent * gap.square().sum()
        if isinstance(table, MixedEmbedding):
            penalty = penalty + how.pull_to_anchor / 2 * (rows - anchor).square().sum()
        return penalty

    def step(self):
        if self.biases and self.steps % 10 == 0:
            self.fit_biases()
        self.steps += 1
        weights = [table.weight for table in self.tables]
        losses = self.objective()
        data = torch.autograd.grad(losses.sum(), weights)
        for table, anchor, slope in zip(self.tables, self.anchors, data, strict=True):
            (penalty,) = torch.autograd.grad(self.penalty(table, anchor), [table.weight])
            sharing = torch.bincount(
                table.row_of(torch.arange(table.num_embeddings)), minlength=len(slope)
            ).clamp(min=1)[:, None]
            sharing = sharing if self.how.average else 1
            inside = self.how.penalty_inside
            table.weight.grad = (slope + penalty) / sharing if inside else slope / sharing + penalty
        self.optimizer.step()
        with torch.no_grad():
            for weight in weights:
                if self.how.projection == "clip":
                    weight.clamp_(min=0)
                elif self.how.projection == "abs":
                    weight.abs_()
        return float(losses.detach().sum())


def make(log, clusters, seed=0, dim=6):
    items = ClusteredEmbedding(log.num_items, dim, max_clusters=clusters)
    model = Model(FullEmbedding(log.num_users, dim), items)
    initialise_factors(model, torch.Generator().manual_seed(seed))
    return model


def assert_same_trajectory(log, how, steps, clusters, rtol):
    fast_model = make(log, clusters)
    slow_model = copy.deepcopy(fast_model)
    fast, slow = GradientDescent(fast_model, log, how), PlainDescent(slow_model, log, how)
    settings_ = {"split_every": 5, "reassign_every": 20, "reassignment": Reassignment(keep=0.3)}
    evidence = DotProductEvidence(fast_model, log, "items")
    obvious = AutogradEvidence(slow_model.items, slow.objective, data=[None])
    clusterers = (
        Clusterer(fast_model.items, fast.optimizer, evidence, **settings_),
        Clusterer(slow_model.items, slow.optimizer, obvious, **settings_),
    )
    for step in range(steps):
        losses = fast.step(), slow.step()
        assert losses[0] == pytest.approx(losses[1], rel=rtol), step
        moves = [clusterer.step() for clusterer in clusterers]
        assert moves[0] == moves[1]
        assert torch.equal(fast_model.items.assignment, slow_model.items.assignment), step
    assert fast_model.items.num_clusters == clusters


@settings(max_examples=25)
@given(
    how=st.builds(
        DescentConfig,
        optimiser=st.sampled_from(list(OPTIMISERS)),
        learning_rate=st.just(1e-3),
        l2=st.floats(0, 5),
        shrink_to_mean=st.sampled_from([0.0, 10.0]),
        shrink_to_parent=st.sampled_from([0.0, 10.0]),
        average=st.booleans(),
        penalty_inside=st.booleans(),
        projection=st.sampled_from(["clip", "abs", "none"]),
    )
)
def test_a_step_is_the_step_of_autograd(how):
    log = Planted(rows=400, users=20, items=30, dim=3).interactions()
    model = make(log, clusters=4)
    model.items.split(0, torch.arange(0, 10))
    model.items.split(0, torch.arange(10, 15))
    with torch.no_grad():
        model.items.weight += torch.rand(model.items.weight.shape)
    twin = copy.deepcopy(model)
    fast, slow = GradientDescent(model, log, how), PlainDescent(twin, log, how)
    for _ in range(2):
        assert fast.step() == pytest.approx(slow.step(), rel=1e-4)
    used = model.items.num_rows
    torch.testing.assert_close(
        model.users.weight[:-1], twin.users.weight[:-1], rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(
        model.items.weight[:used], twin.items.weight[:used], rtol=1e-3, atol=1e-4
    )


@settings(max_examples=25)
@given(
    how=st.builds(
        DescentConfig,
        optimiser=st.sampled_from(list(OPTIMISERS)),
        learning_rate=st.just(1e-3),
        l2=st.floats(0, 5),
        average=st.booleans(),
        penalty_inside=st.booleans(),
        projection=st.sampled_from(["clip", "none"]),
        pull_to_anchor=st.sampled_from([0.0, 20.0]),
        l2_biases=st.sampled_from([0.0, 5.0]),
    ),
    biased=st.booleans(),
)
def test_rows_of_a_mixed_table_move_as_autograd_says_with_biases_and_without(how, biased):
    log = Planted(rows=400, users=20, items=30, dim=3).interactions()
    model = mixed_model(log, biased)
    twin = copy.deepcopy(model)
    fast, slow = GradientDescent(model, log, how), PlainDescent(twin, log, how)
    fast.residuals.start()
    if biased:
        slow.biases.start()
        twin.biases.mean.fill_(slow.biases.mean)
    for step in range(12):  # biases are fitted before the first and the eleventh
        assert fast.step() == pytest.approx(slow.step(), rel=1e-4), step
    torch.testing.assert_close(
        model.user_rows.weight[:-1], twin.user_rows.weight[:-1], rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(model.item_rows.weight, twin.item_rows.weight, rtol=1e-3, atol=1e-3)
    if biased:
        for found, expected in zip(model.biases, twin.biases, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def mixed_model(log, biased, seed=0):
    torch.manual_seed(seed)
    shared = ClusteredEmbedding(log.num_items, 6, max_clusters=4)
    shared.start_from(torch.arange(log.num_items) % 4)
    warm = torch.arange(log.num_items) % 3 == 0
    sides = FullEmbedding(log.num_users, 6), MixedEmbedding.personalise(shared, warm)
    return Model(*map(BiasedEmbedding, sides)) if biased else Model(*sides)


def test_bounded_steps_are_short_enough_for_a_strong_pull():
    log = Planted(rows=400, users=20, items=30, dim=3).interactions()
    model = mixed_model(log, biased=False)
    before = model.items.weight.detach().clone()
    how = DescentConfig(learning_rate=0.1, projection="none", pull_to_anchor=1e5, bounded=True)
    descent = GradientDescent(model, log, how)
    for _ in range(20):
        descent.step()
    torch.testing.assert_close(model.items.weight.detach(), before, rtol=0, atol=0.02)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("kind", ["clustered", "mixed"])
@pytest.mark.parametrize("biased", [False, True])
def test_going_on_from_a_saved_state_is_never_to_have_stopped(optimiser, kind, biased, tmp_path):
    log = Planted(rows=400, users=20, items=30, dim=3).interactions()
    how = DescentConfig(optimiser, learning_rate=1e-2, average=False, bounded=optimiser == "gd")

    def make(seed):
        if kind == "mixed":
            return mixed_model(log, biased, seed)
        tables = FullEmbedding(log.num_users, 6), ClusteredEmbedding(30, 6, max_clusters=30)
        model = Model(*map(BiasedEmbedding, tables)) if biased else Model(*tables)
        initialise_factors(model, torch.Generator().manual_seed(seed))
        return model

    # Saved between two fits of the biases, and run beyond the next.
    assert_resumes(make, lambda model: GradientDescent(model, log, how), tmp_path, steps=(12, 11))


def test_the_collapsed_trajectory_is_the_plain_one_on_planted_data():
    log = Planted(rows=5000, users=100, items=120, dim=4, noise=0.3).interactions()
    how = DescentConfig(learning_rate=2e-4, l2=1.0, shrink_to_mean=5.0)
    assert_same_trajectory(log, how, steps=200, clusters=10, rtol=1e-4)


@pytest.mark.usefixtures("data_folder")
def test_the_collapsed_trajectory_is_the_plain_one_on_ml_100k():
    how = DescentConfig(l2=4.0, shrink_to_mean=100.0)
    assert_same_trajectory(load_dataset("ml-100k"), how, steps=200, clusters=17, rtol=1e-4)


def test_averaging_with_a_row_for_each_id_is_plain_descent():
    log = Planted(rows=500, users=20, items=30, dim=3).interactions()
    full = Model(FullEmbedding(20, 4), FullEmbedding(30, 4))
    initialise_factors(full, torch.Generator().manual_seed(0))
    single = Model(FullEmbedding(20, 4), ClusteredEmbedding(30, 4, max_clusters=30))
    single.items.start_from(torch.arange(30))
    single.users.load_state_dict(full.users.state_dict())
    with torch.no_grad():
        single.items.weight.copy_(full.items.weight[:30])
    descents = [GradientDescent(model, log, DescentConfig()) for model in (full, single)]
    for _ in range(20):
        losses = [descent.step() for descent in descents]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(full.items.weight[:30], single.items.weight)


def test_wrong_names_are_told_with_the_choices():
    with pytest.raises(CelrecError, match="optimiser must be one of gd, adam"):
        DescentConfig(optimiser="sgd")
    with pytest.raises(CelrecError, match="projection must be one of clip"):
        DescentConfig(projection="relu")


@pytest.mark.parametrize("name", ["pull_to_anchor", "l2_biases"])
def test_negative_strengths_are_told(name):
    with pytest.raises(CelrecError, match=f"{name} must not be negative, not -1"):
        DescentConfig(**{name: -1.0})


def test_bounded_steps_never_raise_the_loss_where_plain_ones_blow_up():
    log = Planted(rows=4000, users=20, items=30, dim=3, noise=0.1).interactions()
    losses = {}
    for bounded in (False, True):
        model = make(log, clusters=1)
        how = DescentConfig(learning_rate=0.05, l2=0.0, projection="none", bounded=bounded)
        descent = GradientDescent(model, log, how)
        losses[bounded] = [descent.step() for _ in range(30)]
    assert not losses[False][-1] < losses[False][0]
    # Both sides move at once, so a step may undo a little of the other's; not more.
    assert losses[True][-1] < 0.6 * losses[True][0]
    assert max(losses[True]) == losses[True][0]


def test_bounds_leave_steps_alone_that_are_short_enough():
    log = Planted(rows=400, users=20, items=30, dim=3).interactions()
    models = [make(log, clusters=1) for _ in range(2)]
    for model, bounded in zip(models, (False, True), strict=True):
        descent = GradientDescent(model, log, DescentConfig(learning_rate=1e-6, bounded=bounded))
        descent.step()
    assert torch.equal(models[0].users.weight, models[1].users.weight)
    assert torch.equal(models[0].items.weight, models[1].items.weight)
