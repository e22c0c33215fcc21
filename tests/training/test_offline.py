from dataclasses import replace

import numpy as np
import pytest
import torch

from celrec import CelrecError, Planted, Split
from celrec.clustering.reassignment import Reassignment
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.training.factorisation import Factorisation
from celrec.training.gradient_descent import Descent
from celrec.training.offline import Offline, Schedule
from celrec.training.offline_training import OfflineTraining

PLANTED = Planted(rows=20_000, users=200, items=300, dim=4, item_clusters=6, noise=0.3)
HOW = Offline(
    solver=Descent(learning_rate=1e-3, l2=0.1),
    schedule=Schedule(steps=300, split_every=10, reassign_every=20, judge_every=25, patience=3),
    reassignment=Reassignment(keep=0.3),
)


@pytest.fixture(scope="module")
def split():
    return Split.random(PLANTED.interactions())


def model_for(split, clusters=6):
    log = split.train
    items = ClusteredEmbedding(log.num_items, 8, max_clusters=clusters)
    return Factorisation(FullEmbedding(log.num_users, 8), items)


def train(model, train, valid, how, watch=lambda _: None):
    training = OfflineTraining(model, train, valid, how)
    training.start()
    return training.run(watch)


def error(model, log):
    return float(np.mean((model.predict(log).numpy() - log.target) ** 2))


def test_the_model_left_is_the_one_that_validation_liked_best(split):
    model = model_for(split)
    judgements = train(model, split.train, split.valid, HOW)
    best = min(judgement.valid_loss for judgement in judgements)
    assert error(model, split.valid) == pytest.approx(best, rel=1e-6)
    assert model.items.num_clusters == 6
    assert [j.step for j in judgements] == list(range(25, judgements[-1].step + 1, 25))


def test_clusters_learn_what_a_mean_cannot(split):
    model = model_for(split)
    train(model, split.train, split.valid, HOW)
    spread = float(np.var(split.test.target))
    assert error(model, split.test) < 0.2 * spread


def test_the_same_seed_gives_the_same_model(split):
    one, two = model_for(split), model_for(split)
    for model in (one, two):
        train(model, split.train, split.valid, HOW)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )


def test_both_sides_can_be_clustered(split):
    log = split.train
    users = ClusteredEmbedding(log.num_users, 8, max_clusters=10)
    model = Factorisation(users, ClusteredEmbedding(log.num_items, 8, max_clusters=6))
    judgements = train(model, split.train, split.valid, HOW)
    assert model.users.num_clusters == 10
    assert judgements[-1].valid_loss < judgements[0].valid_loss


def test_a_refit_takes_exactly_the_steps_it_is_told(split):
    model = model_for(split)
    how = replace(HOW, schedule=replace(HOW.schedule, steps=40, judge_every=40))
    train(model, split.train, split.train[:0], how)
    assert model.items.num_clusters == 5  # one at the start and a split at each tenth step


def test_reassignment_ends_when_it_is_told(split):
    moved = []
    schedule = Schedule(
        steps=200, split_every=10, reassign_every=20, reassign_until=100, judge_every=20
    )
    how = Offline(HOW.solver, schedule, reassignment=HOW.reassignment)
    train(model_for(split), split.train, split.valid, how, watch=moved.append)
    assert any(judgement.moved for judgement in moved if judgement.step <= 100)
    assert not any(judgement.moved for judgement in moved if judgement.step > 120)


def test_training_without_validation_data_runs_to_the_end(split):
    model = model_for(split)
    nothing = split.valid[:0]
    judgements = train(model, split.train, nothing, HOW)
    assert judgements[-1].step == HOW.schedule.steps


def test_wrong_schedules_are_told():
    with pytest.raises(CelrecError, match="steps must be positive"):
        Schedule(steps=0)
