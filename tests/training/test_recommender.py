import numpy as np
import pytest
import torch

import celrec
from celrec.clustering.clusterer import Clusterer
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.din import DIN
from celrec.training.batch import Batch
from celrec.training.feature_tables import FeatureTables
from celrec.training.log_evidence import LogEvidence
from celrec.training.losses import squared_error
from celrec.training.recommender import Recommender

DIM = 4


@pytest.fixture
def log():
    return celrec.Planted(rows=3000, users=30, items=40, dim=2, item_clusters=3).interactions()


def recommender(log, model=DIN, clusters=5, length=6):
    torch.manual_seed(0)
    width = DIM + model.extra_columns
    nothing = FeatureTables([], width)
    made = Recommender(
        FullEmbedding(log.num_users, width),
        ClusteredEmbedding(log.num_items, width, max_clusters=clusters),
        model(DIM),
        nothing,
        nothing,
        length if model is DIN else 0,
    )
    made.remember(log)
    return made


def test_a_batch_holds_what_users_did_before(log):
    model = recommender(log)
    rows = torch.tensor([0, 700, 2999])
    batch = model.batch(log, rows, own=True)
    for n, row in enumerate(rows.tolist()):
        assert int(batch.user[n]) == log.user[row]
        earlier = [
            int(log.item[k])
            for k in range(len(log))
            if log.user[k] == log.user[row] and log.timestamp[k] < log.timestamp[row]
        ][-6:]
        assert [j for j in batch.history[n].tolist() if j >= 0] == earlier
    later = model.batch(log[:0], slice(None), own=False)
    assert later.history.shape == (0, 6)


def test_a_model_without_history_gets_none(log):
    assert recommender(log, DeepFM).batch(log, slice(5), own=True).history is None


def test_predictions_of_a_log_are_those_of_its_batches(log):
    model = recommender(log)
    batch = model.batch(log[:50], slice(None), own=False)
    torch.testing.assert_close(model.predict(log[:50]), model(batch).detach())


@pytest.mark.parametrize("kind", [DIN, DeepFM])
def test_evidence_from_the_log_equals_a_loop_over_interactions(log, kind):
    model = recommender(log, kind)
    model.items.start_from(torch.arange(log.num_items) % 5)
    whole = model.batch(log, slice(None), own=True)

    def take(rows):
        return Batch(*(None if column is None else column[rows] for column in whole))

    def objective(batch):
        return squared_error(model(batch), batch.target)

    evidence = LogEvidence(model.items, objective, model, log, "items", take, per_id=10**6)
    losses = evidence.losses()
    members = torch.tensor([3, 17])
    gradients = evidence.gradients(members)
    for n, j in enumerate(members.tolist()):
        mine = take(torch.from_numpy(np.flatnonzero(log.item == j)))
        for k in range(5):
            vector = model.items.weight[k].detach()
            expected = _loss(model, mine, vector.expand(len(mine.item), -1))
            torch.testing.assert_close(losses[j, k], expected, rtol=1e-4, atol=1e-4)
        leaf = model.items.weight[j % 5].detach().clone().requires_grad_()
        _loss(model, mine, leaf.expand(len(mine.item), -1)).backward()
        torch.testing.assert_close(gradients[n], -leaf.grad, rtol=1e-3, atol=1e-3)


def _loss(model, batch, vectors):
    """The loss with other vectors for the targets, histories left as they are."""
    with model.items.probing(
        lambda ids: (
            vectors if ids.ndim == 1 else model.items.weight[model.items.row_of(ids)].detach()
        )
    ):
        return squared_error(model(batch), batch.target).sum()


def test_at_most_so_many_interactions_of_an_id_are_looked_at_and_none_twice(log):
    seen = []

    def take(rows):
        seen.append(rows)
        return Batch(torch.zeros(0), torch.zeros(0), torch.zeros(0))

    model = recommender(log)
    evidence = LogEvidence(model.items, lambda _: None, model, log, "items", take, per_id=7)
    list(evidence._batches())
    rows = torch.cat(seen).numpy()
    assert len(set(rows.tolist())) == len(rows)
    assert (
        np.bincount(log.item[rows], minlength=40).tolist()
        == np.minimum(log.item_counts, 7).tolist()
    )
    assert evidence.interactions().tolist() == log.item_counts.tolist()
    seen.clear()
    list(evidence._batches(torch.tensor([2, 9])))
    assert set(log.item[torch.cat(seen).numpy()].tolist()) == {2, 9}


def test_din_with_clustered_items_learns_in_an_ordinary_loop(log):
    model = recommender(log, clusters=3)
    model.model.set_mean(float(log.target.mean()))
    whole = model.batch(log, slice(None), own=True)

    def take(rows):
        return Batch(*(None if column is None else column[rows] for column in whole))

    def objective(batch):
        return squared_error(model(batch), batch.target)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    evidence = LogEvidence(model.items, objective, model, log, "items", take)
    clusterer = Clusterer(model.items, optimizer, evidence, split_every=20, reassign_every=50)
    for rows in torch.randint(len(log), (200, 300)):
        objective(take(rows)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        clusterer.step()
    assert model.items.num_clusters == 3
    assert float(objective(whole).detach().mean()) < 0.5 * float(np.var(log.target))
