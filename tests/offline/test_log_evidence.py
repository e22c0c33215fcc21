import numpy as np
import pytest
import torch

import celrec
from celrec.cel.reassignment import Reassignment
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.din import DIN
from celrec.models.interaction import LOSSES, rating_and_conversion
from celrec.models.mmoe import MMoE
from celrec.offline.log_evidence import LogEvidence
from celrec.recommender.batch import Batch, FeatureTables
from celrec.recommender.model import Model

DIM, CLUSTERS = 4, 5


@pytest.fixture
def log():
    log = celrec.Planted(rows=3000, users=30, items=40, dim=2, item_clusters=3).interactions()
    table = log.to_frame().with_columns(shop=np.arange(len(log)) * 7 % 12)
    return celrec.read(table, columns=["shop"])


def recommender(log, kind, side="items"):
    torch.manual_seed(0)
    width = DIM + kind.extra_columns
    sizes = {"users": log.num_users, "items": log.num_items, "shop": 12}
    tables = {
        name: ClusteredEmbedding(size, width, max_clusters=CLUSTERS)
        if name == side
        else FullEmbedding(size, width)
        for name, size in sizes.items()
    }
    if side in tables:
        tables[side].start_from(torch.arange(sizes[side]) % CLUSTERS)
    nothing = FeatureTables([], width)
    made = Model(
        tables["users"],
        tables["items"],
        kind(DIM, 1),
        nothing,
        nothing,
        columns={"shop": tables["shop"]},
        history_length=6 if kind is DIN else 0,
        loss=rating_and_conversion(0.0) if kind is MMoE else LOSSES["squared-error"],
    )
    made.remember(log)
    return made


def evidence_of(model, log, side, **how):
    def take(rows):
        return model.batch(log, rows, own=True)

    return LogEvidence(model, log, side, take, **how)


def own_ids(log, side):
    return {"users": log.user, "items": log.item, "shop": log.columns["shop"].values}[side]


def loss_of(model, log, side, j, vector):
    """The loss of one id with another vector where it is the one that counts, one by one."""
    table = model.tables[side]
    rows = torch.from_numpy(np.flatnonzero(own_ids(log, side) == j))
    batch = model.batch(log, rows, own=True)

    def other(ids):
        if ids.ndim == 1:
            return vector.expand(len(ids), -1)
        return table.weight[table.row_of(ids)].detach()

    with table.probing(other):
        return model.objective(batch).sum()


@pytest.mark.parametrize("side", ["items", "users", "shop"])
@pytest.mark.parametrize("kind", [DIN, DeepFM, MMoE])
def test_evidence_from_the_log_equals_a_loop_over_interactions(log, kind, side):
    model = recommender(log, kind, side)
    evidence = evidence_of(model, log, side, per_id=10**6)
    losses = evidence.losses()
    members = torch.tensor([3, 7])
    gradients = evidence.gradients(members)
    for n, j in enumerate(members.tolist()):
        for k in range(CLUSTERS):
            vector = model.tables[side].weight[k].detach()
            expected = loss_of(model, log, side, j, vector)
            torch.testing.assert_close(losses[j, k], expected, rtol=1e-4, atol=1e-4)
        leaf = model.tables[side].weight[j % CLUSTERS].detach().clone().requires_grad_()
        loss_of(model, log, side, j, leaf).backward()
        torch.testing.assert_close(gradients[n], -leaf.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("side", ["items", "users", "shop"])
@pytest.mark.parametrize("kind", [DIN, DeepFM, MMoE])
def test_few_candidates_have_the_losses_that_all_would_have(log, kind, side):
    model = recommender(log, kind, side)
    everything = evidence_of(model, log, side, per_id=20).losses()
    few = evidence_of(model, log, side, per_id=20, candidates=2).losses()
    known = few.isfinite()
    assert known.sum(1).tolist() == [2] * len(few)
    own = model.tables[side].assignment[:-1].long()
    assert known.gather(1, own[:, None]).all()
    torch.testing.assert_close(few[known], everything[known], rtol=1e-4, atol=1e-4)


def test_where_the_output_is_linear_the_best_cluster_is_always_among_the_candidates(log):
    class Linear(DeepFM):
        """No more than a dot product, which is linear in the item."""

        def forward(self, user, item, history=None, features=None):
            return (user * item).sum(-1)

    model = recommender(log, Linear)
    everything = evidence_of(model, log, "items", per_id=50).losses()
    few = evidence_of(model, log, "items", per_id=50, candidates=2).losses()
    assert torch.equal(few.argmin(1), everything.argmin(1))


def test_a_reassignment_among_candidates_never_raises_the_judged_loss(log):
    model = recommender(log, DIN)
    evidence = evidence_of(model, log, "items", per_id=10**6, candidates=3)
    before = float(evidence.own_losses().sum())
    losses, table = evidence.losses(), model.items
    new = Reassignment(keep=0.0)(
        losses, table.assignment[:-1].long(), evidence.interactions(), torch.Generator()
    )
    judged = losses.gather(1, new[:, None]).sum()
    assert float(judged) < before
    assert judged.isfinite()


def test_at_most_so_many_interactions_of_an_id_are_looked_at_and_none_twice(log):
    seen = []

    def take(rows):
        seen.append(rows)
        return Batch(torch.zeros(0), torch.zeros(0), torch.zeros(0))

    model, now = recommender(log, DIN), 0
    evidence = LogEvidence(
        model, log, "items", take, per_id=7, rng=lambda: np.random.default_rng(now)
    )
    list(evidence._batches())
    rows = torch.cat(seen).numpy()
    assert len(set(rows.tolist())) == len(rows)
    taken = np.bincount(log.item[rows], minlength=40)
    assert taken.tolist() == np.minimum(log.item_counts, 7).tolist()
    assert evidence.interactions().tolist() == log.item_counts.tolist()
    seen.clear()
    list(evidence._batches(torch.tensor([2, 9])))
    some = torch.cat(seen).numpy()
    assert set(log.item[some].tolist()) == {2, 9}
    assert set(some.tolist()) <= set(
        rows.tolist()
    )  # the same ones as long as the generators are equal
    seen.clear()
    now = 1
    list(evidence._batches())
    assert not np.array_equal(torch.cat(seen).numpy(), rows)


def test_sums_over_some_interactions_are_scaled_up_to_all(log):
    model, drawn = recommender(log, DeepFM), []

    def take(rows):
        drawn.append(rows)
        return model.batch(log, rows, own=True)

    evidence = LogEvidence(model, log, "items", take, per_id=7)
    losses, gradients = evidence.own_losses(), evidence.gradients(torch.arange(log.num_items))
    rows = torch.cat(drawn[: len(drawn) // 2])
    batch = model.batch(log, rows, own=True)
    leaf = model.items.weight[model.items.row_of(batch.item)].detach().requires_grad_()
    with model.items.probing(lambda _: leaf):
        one_by_one = model.objective(batch)
    one_by_one.sum().backward()
    for j in range(log.num_items):
        mine = batch.item == j
        scale = log.item_counts[j] / int(mine.sum())
        torch.testing.assert_close(losses[j], one_by_one[mine].detach().sum() * scale)
        expected = -leaf.grad[mine].sum(0) * scale
        torch.testing.assert_close(gradients[j], expected, rtol=1e-4, atol=1e-4)
