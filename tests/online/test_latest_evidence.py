import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.cel.clusterer import Clusterer
from celrec.cel.reassignment import Reassignment
from celrec.cel.tangent_kernels import (
    KNOWN_LOSSES,
    Tangents,
    choose_by_tangents,
    draw_candidates,
    tangent_losses,
)
from celrec.config.online import OnlineClusterConfig, OnlineConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.models.interaction import LOSSES, rating_and_conversion
from celrec.models.mmoe import MMoE
from celrec.online import latest_evidence
from celrec.online.latest_evidence import LatestEvidence, RecentEvents
from celrec.online.make_trainer import make_trainer
from celrec.recommender.batch import Batch, FeatureTables
from celrec.recommender.model import Model

IDS, CLUSTERS, DIM = 9, 5, 3


def slow_loss(loss, output, target):
    if loss == "squared-error":
        return (output - target) ** 2
    return max(output, 0) + math.log1p(math.exp(-abs(output))) - target * output


# The kernel.


class Made:
    """Tangents, rows and ids that were made up."""

    def __init__(self, seed, size=1.0, ids=4, events=12):
        rng = np.random.default_rng(seed)
        self.ids = rng.choice(IDS, ids, replace=False)
        self.assignment = rng.integers(0, CLUSTERS, IDS + 1).astype(np.int16)
        self.owner = np.sort(rng.integers(0, ids, events))
        shapes = ((CLUSTERS, DIM), (DIM,), (events,), (events, DIM), (events, DIM))
        self.weight, self.mean, self.outputs, self.slopes, self.vectors = (
            (size * rng.normal(size=shape)).astype(np.float32) for shape in shapes
        )
        self.targets = rng.integers(0, 2, events).astype(np.float32)

    def choose(self, loss, tried, prior, moment=7):
        arrays = self.outputs, self.slopes, self.vectors, self.targets
        return choose_by_tangents(
            *(self.ids, self.assignment, self.weight, np.arange(CLUSTERS), self.weight),
            *(tried, moment, self.mean, prior, self.owner),
            Tangents(*arrays, loss == "cross-entropy"),
        )

    def drawn(self, tried, moment=7):
        own = self.assignment[self.ids].astype(np.int64)
        return draw_candidates(own, CLUSTERS, tried, moment)

    def cost(self, loss, member, cluster, prior):
        """By loops, and by exact logarithms."""
        row = self.weight[cluster].tolist()
        total = prior / 2 * sum((r - m) ** 2 for r, m in zip(row, self.mean.tolist(), strict=True))
        for event, owner in enumerate(self.owner):
            if owner != member:
                continue
            output = float(self.outputs[event])
            for r, s, v in zip(row, self.slopes[event], self.vectors[event], strict=True):
                output += float(s) * (r - float(v))
            total += slow_loss(loss, output, float(self.targets[event]))
        return total


@given(
    st.sampled_from(KNOWN_LOSSES),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.integers(0, 8),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 2**20),
)
@settings(max_examples=100)
def test_the_best_cluster_by_tangents_is_that_of_a_loop_and_never_worse_than_the_own(
    loss, size, tried, prior, seed
):
    made = Made(seed, size)
    best, drawn = made.choose(loss, tried, prior), made.drawn(tried)
    for member, found in enumerate(best):
        costs = [made.cost(loss, member, cluster, prior) for cluster in drawn[:, member]]
        got = made.cost(loss, member, found, prior)
        assert got <= costs[0] + 1e-4 * (1 + abs(costs[0]))
        assert got == pytest.approx(min(costs), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("loss", KNOWN_LOSSES)
def test_an_id_stays_where_no_cluster_is_better(loss):
    made = Made(1)
    made.weight[:] = made.weight[0]  # all are alike
    assert (made.choose(loss, 8, 2.0) == made.assignment[made.ids]).all()


@pytest.mark.parametrize("loss", KNOWN_LOSSES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_outputs_that_are_out_of_bounds_move_nobody(loss, value):
    made = Made(2)
    made.outputs[:] = value
    assert np.isin(made.choose(loss, 8, 0.0), made.drawn(8)).all()
    if not np.isfinite(value):
        assert (made.choose(loss, 8, 0.0) == made.assignment[made.ids]).all()


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_cross_entropy_is_right_to_five_digits_whatever_the_output_is(target):
    z = np.concatenate([np.linspace(-40, 40, 100_001), [1e3, -1e3, 1e30, -1e30]])
    rows, losses = z.astype(np.float32)[None], np.empty(len(z), np.float32)
    one = np.ones((1, 1), np.float32)
    tangents = Tangents(0 * one[0], one, 0 * one, np.float32([target]), True)
    tangent_losses(rows, 0, tangents, losses)
    exact = np.logaddexp(0, z) - target * z
    np.testing.assert_allclose(losses, exact, atol=1.2e-5, rtol=1e-6)


# By a judge.


def make(model, loss="cross-entropy", *, seed=0):
    """A trainer that has seen some events, and evidence about its users."""
    torch.manual_seed(seed)
    width = DIM + model.extra_columns
    tables = [ClusteredEmbedding(IDS, width, max_clusters=CLUSTERS) for _ in range(2)]
    for table in tables:
        table.start_from(torch.arange(IDS) % CLUSTERS)
    none = FeatureTables([], width)
    told = rating_and_conversion(1.0) if isinstance(model, MMoE) else LOSSES[loss]
    trainer = make_trainer(
        OnlineConfig(assignment="hard", moving=OnlineClusterConfig(candidates=0)),
        Model(*tables, model, none, none, loss=told),
    )
    kept = RecentEvents(4, 0, 2, ids=IDS)
    rng = np.random.default_rng(seed)
    ids = [torch.from_numpy(rng.integers(0, IDS - 1, 40)) for _ in range(2)]  # the last has none
    batch = Batch(*ids, torch.from_numpy(rng.integers(0, 2, 40).astype(np.float32)))
    kept.store(batch, batch.user.numpy())
    return trainer, tables[0], kept


def evidence_of(table, kept, trainer, *, mean=0.0, **moving):
    mean = torch.full((table.embedding_dim,), mean)
    config = OnlineClusterConfig(**{"candidates": 6, **moving})
    return LatestEvidence("users", table, kept, config, mean, trainer)


def networks():
    return [DotProduct(), BiasedDotProduct(0.4), DeepFM(DIM)]


@pytest.mark.parametrize("loss", KNOWN_LOSSES)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("near", [CLUSTERS, CLUSTERS - 1, 2])
def test_for_products_tangents_choose_what_all_outputs_choose(
    monkeypatch, loss, number, seed, near
):
    monkeypatch.setattr(latest_evidence, "CACHED_ROWS", near)
    trainer, table, kept = make(networks()[number], loss, seed=seed)
    with torch.no_grad():
        found = [
            evidence_of(table, kept, trainer, mean=0.1, by_tangent=by_tangent).best(
                np.arange(IDS), 3
            )
            for by_tangent in (True, False)
        ]
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("by_tangent", [True, False])
def test_of_very_many_clusters_all_ids_draw_from_the_same_few(monkeypatch, by_tangent):
    monkeypatch.setattr(latest_evidence, "CACHED_ROWS", 2)
    trainer, table, kept = make(networks()[0])
    everyone = np.arange(IDS)
    evidence, drawn = evidence_of(table, kept, trainer, by_tangent=by_tangent), set()
    own = table.assignment[:-1].numpy()
    with torch.no_grad():
        for moment in range(40):
            best = evidence.best(everyone, moment)
            others = set(best[best != own].tolist())
            assert len(others) <= 2
            drawn |= others
    assert len(drawn) > 2  # others in other moments


@given(st.integers(0, 1000), st.sampled_from(KNOWN_LOSSES), st.booleans(), st.integers(0, 2))
@settings(max_examples=40)
def test_the_judged_loss_never_rises(seed, loss, by_tangent, number):
    trainer, table, kept = make(networks()[number], loss, seed=seed)
    everyone = np.arange(IDS)
    evidence = evidence_of(table, kept, trainer, by_tangent=by_tangent, prior=1.0)
    with torch.no_grad():
        best = evidence.best(everyone, seed)
        owner, batch = kept.replay(everyone)
        own = table.assignment[:-1].numpy()
        costs = []
        for clusters in (own, best):
            rows = table.weight[torch.from_numpy(clusters.astype(np.int64))]
            total = 0.5 * rows.square().sum(1)
            if by_tangent:
                tangent = trainer.tangent("users", batch)
                output = tangent.output
                output = output + ((rows[owner] - tangent.vector) * tangent.slope).sum(1)
                losses = LOSSES[loss].of_samples(output, batch.target)
            else:
                losses = trainer.losses("users", batch, rows[None, owner])[0]
            costs.append(total.index_add(0, torch.from_numpy(owner), losses))
    assert (costs[1] <= costs[0] + 1e-4).all()


@pytest.mark.parametrize("loss", [*KNOWN_LOSSES, "ranking"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_gradients_are_those_of_the_latest_events(loss, number):
    trainer, table, kept = make(networks()[number], loss)
    ids = np.array([4, 8, 0, 2])
    with torch.no_grad():
        found = evidence_of(table, kept, trainer).gradients(torch.from_numpy(ids)).numpy()
        owner, batch = kept.replay(ids)
        gradients = trainer.gradients("users", batch).numpy()
    expected = np.zeros(found.shape)
    for event, place in enumerate(owner):
        expected[place] -= gradients[event]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found[1] == 0).all()  # who has no events


def test_several_outputs_are_judged_by_all_of_them():
    trainer, table, kept = make(MMoE(DIM))
    everyone = np.arange(IDS)
    evidence = evidence_of(table, kept, trainer)
    with torch.no_grad():
        assert trainer.tangent("users", kept.replay(everyone)[1]) is None
        best, losses = evidence.best(everyone, 3), evidence.losses().numpy()
        drawn = draw_candidates(table.assignment[:-1].long().numpy(), CLUSTERS, 6, 3)
        expected = drawn[losses[everyone, drawn].argmin(0), everyone]
        assert best.tolist() == expected.tolist()
        assert evidence.gradients(torch.arange(IDS)).isfinite().all()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_latest_events_are_evidence_as_any_other(number):
    trainer, table, kept = make(networks()[number])
    with torch.no_grad():
        evidence = evidence_of(table, kept, trainer, mean=0.1, prior=2.0)
        losses, own = evidence.losses(), table.assignment[:-1].long()
        owner, batch = kept.replay(np.arange(IDS))
        for cluster in range(CLUSTERS):
            row = table.weight[cluster].expand(len(owner), -1)
            expected = (table.weight[cluster] - 0.1).square().sum().repeat(IDS)
            expected.index_add_(
                0, torch.from_numpy(owner), trainer.losses("users", batch, row[None])[0]
            )
            torch.testing.assert_close(losses[:, cluster], expected)
        torch.testing.assert_close(evidence.own_losses(), losses[torch.arange(IDS), own])
        assert evidence.interactions().tolist()[: len(kept.counts)] == kept.counts.tolist()
        rule = Reassignment(keep=0.0)
        moved = rule(losses, own, evidence.interactions())
        Clusterer(table, None, evidence, split_every=0, reassignment=rule).reassign()
    assert torch.equal(table.assignment[:-1].long(), moved)
