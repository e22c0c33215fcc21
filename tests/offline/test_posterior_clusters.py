from dataclasses import replace

import numpy as np
import pytest
import torch

from celrec import CelrecError, Plan, Planted, Split, fit
from celrec.config.offline import LeastSquaresConfig, OfflineConfig, Schedule
from celrec.config.presets import PRESETS
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.evaluation.cluster_diagnostics import adjusted_rand_index
from celrec.offline.posterior_clusters import PosteriorClusters
from celrec.offline.training import OfflineTraining
from celrec.recommender.model import Model
from celrec.runtime.state_file import load_state, save_state

NOISY = Planted(rows=6_000, users=120, items=90, dim=3, item_clusters=12, noise=0.3)


@pytest.fixture(scope="module")
def split():
    return Split.random(NOISY.interactions())


def model_of(log, clusters, *, biased, user_clusters=None, dim=4):
    torch.manual_seed(0)
    users = FullEmbedding(log.num_users, dim)
    if user_clusters:
        users = ClusteredEmbedding(log.num_users, dim, max_clusters=user_clusters)
    items = ClusteredEmbedding(log.num_items, dim, max_clusters=clusters)
    if biased:
        return Model(BiasedEmbedding(users), BiasedEmbedding(items))
    return Model(users, items)


def settings(*, non_negative=False, steps=30, full_sweeps=5):
    preset = PRESETS["nmf"]["posterior"]
    return replace(
        preset,
        solver=LeastSquaresConfig(
            members="posterior", non_negative=non_negative, full_sweeps=full_sweeps
        ),
        schedule=replace(preset.schedule, steps=steps),
    )


class SlowPosterior:
    """H_j, q_j of every item by loops over the interactions, from a solver that has started."""

    def __init__(self, solver, log):
        self.solver, self.log = solver, log

    def members(self):
        solver, model = self.solver, self.solver.model
        users = model.user_rows.weight.detach().double().numpy()
        moments = solver._moments["users"].double().numpy()
        precision = solver._precisions["items"].numpy()
        mean = solver._means["items"].double().numpy()
        targets = solver.residuals.target
        dim = users.shape[1]
        curvature = np.zeros((self.log.num_items, dim, dim)) + precision
        linear = np.zeros((self.log.num_items, dim)) + precision @ mean
        for user, item, target in zip(self.log.user, self.log.item, targets, strict=True):
            curvature[item] += moments[user] / solver._noise
            linear[item] += target * users[user] / solver._noise
        return curvature, linear


@pytest.mark.parametrize("non_negative", [False, True])
def test_members_are_known_as_loops_over_their_interactions_say(split, non_negative):
    log = split.train.seen()
    how = LeastSquaresConfig(members="posterior", non_negative=non_negative, full_sweeps=3)
    solver = PosteriorClusters(model_of(log, 6, biased=not non_negative), log, how)
    solver.start(0)
    curvature, linear = SlowPosterior(solver, log).members()
    found = solver.evidence("items").members
    np.testing.assert_allclose(found.curvature, curvature, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(found.linear, linear, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("biased", [False, True])
def test_users_stay_while_clusters_split_and_move_after_that(split, biased):
    log = split.train.seen()
    model = model_of(log, 6, biased=biased)
    training = OfflineTraining(model, log, split.valid, settings(non_negative=not biased, steps=1))
    training.start()
    solver, seen = training.solver, []
    clusterer = training._make_clusterers()["items"]
    for _ in range(12):
        before = model.user_rows.weight.detach().clone()
        solver.step()
        seen.append((model.item_rows.num_clusters, torch.equal(before, model.user_rows.weight)))
        clusterer.step()
    growing = [stayed for clusters, stayed in seen if clusters < 6]
    assert len(growing) >= 3
    assert all(growing)
    assert not seen[-1][1]


@pytest.mark.parametrize("non_negative", [False, True])
def test_predictions_are_those_of_the_clusters(split, non_negative):
    log = split.train.seen()
    model = model_of(log, 6, biased=not non_negative)
    training = OfflineTraining(model, log, split.valid, settings(non_negative=non_negative))
    training.start()
    training.run()
    solver = training.solver
    torch.testing.assert_close(solver.model.predict(split.valid), model.predict(split.valid))
    if non_negative:
        assert model.item_rows.weight.min() >= 0
        assert model.user_rows.weight.min() >= 0


def test_both_sides_may_be_clustered(split):
    log = split.train.seen()
    model = model_of(log, 12, biased=True, user_clusters=20)
    training = OfflineTraining(model, log, split.valid, settings(steps=40))
    training.start()
    training.run()
    assert model.user_rows.num_clusters > 10
    assert training.best.valid_loss < 0.6 * float(np.var(split.valid.target))


def test_clusters_that_were_planted_are_found():
    planted = Planted(rows=20_000, users=200, items=150, dim=3, item_clusters=7, noise=0.0)
    split = Split.random(planted.interactions())
    plan = Plan(model="nmf", preset="posterior", compression="7", rank=8)
    fitted = fit(split, plan)
    found = fitted.model.item_rows.assignment[:-1].numpy()
    labels = planted.item_cluster[split.train.item_ids.ids.to_numpy()]
    assert adjusted_rand_index(found.tolist(), labels.tolist()) >= 0.99


def test_uncertain_members_make_better_clusters_than_losses(split):
    losses = {}
    for preset in ("default", "posterior"):
        plan = Plan(model="nmf", preset=preset, compression="8", rank=8)
        model = fit(split, plan).model
        errors = model.predict(split.test) - torch.tensor(split.test.target)
        losses[preset] = float(errors.square().mean())
    assert losses["posterior"] < losses["default"]


@pytest.mark.parametrize("stop", [2, 9, 16])
def test_saved_loaded_and_continued_is_as_never_stopped(split, tmp_path, stop):
    log = split.train.seen()

    def training(steps):
        how = settings(steps=steps)
        how = replace(how, schedule=replace(how.schedule, patience=100, validate_every=2))
        made = OfflineTraining(model_of(log, 6, biased=True), log, split.valid, how)
        made.start()
        return made

    whole = training(20)
    whole.run()
    part = training(20)
    saved = []

    def save():
        if part._step >= stop and not saved:
            save_state(tmp_path / "state", part.state_dict())
            saved.append(part._step)

    part.run(save=save)
    again = training(20)
    again.load_state_dict(load_state(tmp_path / "state"))
    again.run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    assert [r.valid_loss for r in whole.validation_records] == [
        r.valid_loss for r in again.validation_records
    ]


def test_settings_that_make_no_sense_are_told():
    with pytest.raises(CelrecError, match="members must be one of losses, posterior, not 'x'"):
        LeastSquaresConfig(members="x")
    with pytest.raises(CelrecError, match="full_sweeps must be positive, not 0"):
        LeastSquaresConfig(members="posterior", full_sweeps=0)


def test_items_without_interactions_share_the_row_of_unseen_ones(split):
    log = split.train.seen()
    model = model_of(log, 6, biased=True)
    quiet = log[log.item != log.item[0]]
    how = OfflineConfig(
        solver=LeastSquaresConfig(members="posterior", full_sweeps=3),
        schedule=Schedule(steps=10, split_every=1, growth=0.5, reassign_every=1, validate_every=2),
        criterion="gain",
    )
    training = OfflineTraining(model, quiet, split.valid, how)
    training.start()
    training.run()
    table = model.item_rows
    assert int(table.assignment[log.item[0]]) == table.unseen_cluster
