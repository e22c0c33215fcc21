from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import Planted, read
from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.offline import factorisation_solver as module
from celrec.offline.factorisation_solver import DotProductEvidence, Residuals
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from tests.data.logs import logs


def clustered(size, seed, clusters=3):
    table = ClusteredEmbedding(size, 4, max_clusters=min(clusters, size))
    cluster = np.random.default_rng(seed).integers(table.max_clusters, size=size)
    cluster[: table.max_clusters] = np.arange(table.max_clusters)
    table.start_from(torch.from_numpy(cluster))
    return table


@settings(max_examples=40)
@given(logs(), st.integers(0, 99), st.booleans())
def test_both_sides_agree_with_autograd(log, seed, share_users):
    torch.manual_seed(seed)
    users = clustered(log.num_users, seed) if share_users else FullEmbedding(log.num_users, 4)
    model = Model(users, clustered(log.num_items, seed + 1))
    samples = Batch.of_log(log, (), None)

    def objective(_):
        return (model(samples) - samples.target).square()

    sides = [("items", model.items)] + ([("users", users)] if share_users else [])
    for side, table in sides:
        slow = AutogradEvidence(table, objective, data=[None])
        fast = DotProductEvidence(model, log, side)
        members = torch.arange(table.num_embeddings)
        assert torch.equal(fast.interactions(), slow.interactions())
        torch.testing.assert_close(
            fast.gradients(members).float(), slow.gradients(members), rtol=1e-4, atol=1e-3
        )
        torch.testing.assert_close(fast.losses(), slow.losses(), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(fast.own_losses(), slow.own_losses(), rtol=1e-4, atol=1e-3)


def biased(users, items):
    model = Model(BiasedEmbedding(users), BiasedEmbedding(items))
    with torch.no_grad():
        for bias in model.biases:
            bias.normal_()
    return model


@settings(max_examples=30)
@given(logs(), st.integers(0, 99), st.sampled_from(["users", "items"]), st.booleans())
def test_with_biases_the_evidence_is_that_of_a_plain_model_on_what_they_leave(
    log, seed, side, fitted
):
    torch.manual_seed(seed)
    users, items = clustered(log.num_users, seed), clustered(log.num_items, seed + 1)
    model, plain = biased(users, items), Model(users, items)
    residuals = Residuals(model, log)
    evidence = DotProductEvidence(model, log, side, residuals)
    evidence.losses()
    if fitted:  # what is left changes after the evidence was made
        residuals.fit_biases()
    bias = model.biases
    known = bias.mean + bias.users[torch.tensor(log.user)] + bias.items[torch.tensor(log.item)]
    left = log.target - known.detach().numpy()
    expected = DotProductEvidence(plain, replace(log, target=left), side)
    members = torch.arange(log.num_users if side == "users" else log.num_items)
    alone = DotProductEvidence(model, log, side)  # that finds out itself
    for each in (evidence, alone):
        for found, wanted in (
            (each.losses(), expected.losses()),
            (each.own_losses(), expected.own_losses()),
            (each.gradients(members), expected.gradients(members)),
            (each.partners(members), expected.partners(members)),
            (each.interactions(), expected.interactions()),
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


@settings(max_examples=30)
@given(logs(), st.integers(0, 99), st.sampled_from(["users", "items"]))
def test_with_biases_both_sides_agree_with_autograd(log, seed, side):
    torch.manual_seed(seed)
    model = biased(clustered(log.num_users, seed), clustered(log.num_items, seed + 1))
    table = {"users": model.user_rows, "items": model.item_rows}[side]
    samples = Batch.of_log(log, (), None)
    slow = AutogradEvidence(
        table, lambda _: (model(samples) - samples.target).square(), data=[None]
    )
    fast = DotProductEvidence(model, log, side)
    members = torch.arange(table.num_embeddings)
    torch.testing.assert_close(
        fast.gradients(members).float(), slow.gradients(members), rtol=1e-4, atol=1e-3
    )
    torch.testing.assert_close(fast.losses(), slow.losses(), rtol=1e-4, atol=1e-3)


@given(logs(), st.integers(0, 9))
def test_partners_are_the_mean_rows_of_those_interacted_with(log, seed):
    torch.manual_seed(seed)
    model = Model(FullEmbedding(log.num_users, 4), clustered(log.num_items, seed))
    members = torch.arange(log.num_items)
    means = DotProductEvidence(model, log, "items").partners(members)
    for item in range(log.num_items):
        raters = torch.from_numpy(log.user[log.item == item].astype(np.int64))
        expected = model.users(raters).mean(0)
        torch.testing.assert_close(means[item].float(), expected, rtol=1e-4, atol=1e-5)


def test_rows_with_an_unseen_id_do_not_count():
    train = read({"user": [1, 2, 2], "item": [1, 1, 2], "rating": [1.0, 2.0, 3.0]})
    more = read({"user": [1, 9, 2], "item": [1, 2, 9], "rating": [1.0, 2.0, 3.0]}, like=train)
    model = Model(FullEmbedding(2, 4), clustered(2, 0, clusters=2))
    with_biases = biased(FullEmbedding(2, 4), clustered(2, 0, clusters=2))
    for each in (model, with_biases):
        evidence = DotProductEvidence(each, more, "items")
        assert evidence.interactions().tolist() == [1, 0]
        assert evidence.losses().shape == (2, 2)
        assert evidence.losses()[1].tolist() == [0, 0]


def test_very_many_clusters_are_judged_a_few_at_a_time():
    log = Planted(rows=4000, users=30, items=300, dim=2).interactions()
    model = Model(FullEmbedding(log.num_users, 4), clustered(log.num_items, 0, 290))
    assert model.items.num_rows > 2 * module.CANDIDATES
    predicted = (model.users.weight @ model.items.weight[:290].T).detach().double().numpy()
    expected = np.zeros((log.num_items, 290))
    np.add.at(expected, log.item, (predicted[log.user] - log.target[:, None]) ** 2)
    found = DotProductEvidence(model, log, "items").losses()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_losses_of_very_popular_items_keep_their_digits():
    rows = 200_000
    ratings = np.random.default_rng(0).normal(3.5, 1, rows).astype(np.float32)
    log = read({"user": np.arange(rows) % 1000, "item": np.zeros(rows, int), "rating": ratings})
    model = Model(FullEmbedding(log.num_users, 4), clustered(log.num_items, 0))
    users, items = (table.weight.detach().double() for table in (model.users, model.items))
    predicted = (users[torch.from_numpy(log.user.astype(int))] @ items[0]).numpy()
    expected = np.square(predicted - log.target.astype(np.float64)).sum()
    found = float(DotProductEvidence(model, log, "items").losses()[0, 0])
    assert abs(found / expected - 1) < 1e-6
