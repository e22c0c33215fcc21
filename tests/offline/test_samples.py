from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import celrec
from celrec.data.interactions import EncodedFeature
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.din import DIN
from celrec.models.interaction import LOSSES, rating_and_conversion
from celrec.models.mmoe import MMoE
from celrec.offline.samples import Samples
from celrec.recommender.batch import FeatureTables
from celrec.recommender.model import Model
from tests.data.logs import logs

DIM = 3
KINDS = ("full", "clustered", "modulo", "mixed")


def table(kind, ids, width):
    clusters = min(3, ids)
    shared = ClusteredEmbedding(ids, width, max_clusters=clusters)
    shared.start_from(torch.arange(ids) % clusters)
    if kind == "clustered":
        return shared
    if kind == "mixed":
        return MixedEmbedding.personalise(shared, torch.arange(ids) % 2 == 0)
    if kind == "modulo":
        return ModuloEmbedding(ids, width, rows=clusters)
    return FullEmbedding(ids, width)


def recommender(
    log, users="full", items="clustered", loss="squared-error", model=DeepFM, known=((), ())
):
    torch.manual_seed(0)
    fields = len(known[0]) + len(known[1]) + len(log.columns)
    width = DIM + model.extra_columns
    made = Model(
        table(users, log.num_users, width),
        table(items, log.num_items, width),
        model(DIM, fields),
        FeatureTables(known[0], width),
        FeatureTables(known[1], width),
        columns={name: table("full", 5, width) for name in log.columns},
        history_length=4 if model is DIN else 0,
        loss=rating_and_conversion(2.0) if model is MMoE else LOSSES[loss],
    )
    made.remember(log)
    return made


def feature(ids):
    return EncodedFeature("colour", (np.arange(ids) % 2).astype(np.int32)[:, None], 2)


def loss_and_gradients(model, batch):
    """The loss of all samples, each as often as it counts, and the gradient of each parameter."""
    model.zero_grad()
    losses = model.objective(batch)
    weight = torch.ones_like(losses) if batch.weight is None else batch.weight
    total = (losses * weight).sum()
    total.backward()
    return float(total.detach()), {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_exact(model, log, samples):
    whole, slopes = loss_and_gradients(model, model.batch(log, slice(None), own=True))
    batch = samples.take(torch.arange(len(samples)))
    collapsed, same = loss_and_gradients(model, batch)
    assert collapsed + samples.constant == pytest.approx(whole, rel=1e-4, abs=1e-3)
    for name, slope in slopes.items():
        largest = max(1.0, float(slope.abs().max()))
        torch.testing.assert_close(same[name], slope, rtol=1e-4, atol=1e-4 * largest)
    if batch.weight is not None:
        assert float(batch.weight.sum()) == len(log)


def pairs(model, log):
    """The pairs of rows that occur."""
    rows = [
        t.row_of(torch.tensor(ids.astype(np.int64))).tolist()
        for t, ids in ((model.users, log.user), (model.items, log.item))
    ]
    return set(zip(*rows, strict=True))


@settings(max_examples=30)
@given(logs(), st.sampled_from(KINDS), st.sampled_from(KINDS), st.booleans())
def test_the_loss_and_all_gradients_are_those_of_the_interactions(log, users, items, binary):
    if binary:
        log = replace(log, target=(log.target > 2).astype(np.float32))
    model = recommender(log, users, items, "cross-entropy" if binary else "squared-error")
    samples = Samples(model, log)
    assert len(samples) == len(pairs(model, log))
    assert_exact(model, log, samples)


@pytest.mark.parametrize("loss", ["squared-error", "cross-entropy"])
def test_reassignments_are_followed(loss):
    log = celrec.Planted(rows=500, users=15, items=20, dim=2, item_clusters=3).interactions()
    log = replace(log, target=(log.target > 3).astype(np.float32))
    model = recommender(log, "clustered", loss=loss)
    samples = Samples(model, log)
    model.items.assign(torch.arange(20).flip(0) % 3)
    model.users.assign(torch.arange(15) // 5)
    outdated = samples.take(torch.arange(len(samples)))
    samples.follow()
    followed = samples.take(torch.arange(len(samples)))
    assert not torch.equal(outdated.target, followed.target)
    assert_exact(model, log, samples)
    kept = samples.first
    samples.follow()
    assert samples.first is kept  # nothing to do


def test_a_split_is_followed():
    log = celrec.Planted(rows=500, users=15, items=20, dim=2, item_clusters=3).interactions()
    model = recommender(log)
    items = ClusteredEmbedding(20, DIM + 1, max_clusters=2)
    model.items = items
    samples = Samples(model, log)
    assert len(samples) == len(set(log.user.tolist()))
    items.split(0, torch.arange(10))
    samples.follow()
    assert len(samples) == len(pairs(model, log)) > 15
    assert_exact(model, log, samples)


def test_some_samples_are_those_at_their_numbers():
    log = celrec.Planted(rows=300, users=15, items=20, dim=2, item_clusters=3).interactions()
    samples = Samples(recommender(log), log)
    everything, numbers = samples.take(torch.arange(len(samples))), torch.tensor([7, 0, 7])
    some = samples.take(numbers)
    for found, expected in zip(some, everything, strict=True):
        assert (found is None) == (expected is None)
        assert found is None or torch.equal(found, expected[numbers])


def test_features_of_those_with_rows_of_their_own_do_no_harm():
    log = celrec.Planted(rows=500, users=15, items=20, dim=2, item_clusters=3).interactions()
    model = recommender(log, "full", "clustered", known=([feature(15)], []))
    samples = Samples(model, log)
    assert len(samples) == len(pairs(model, log)) < len(log)
    assert_exact(model, log, samples)
    model = recommender(log, "clustered", "full", known=([], [feature(20)]))
    samples = Samples(model, log)
    assert len(samples) < len(log)
    assert_exact(model, log, samples)


@pytest.fixture
def log():
    log = celrec.Planted(rows=400, users=15, items=20, dim=2, item_clusters=3).interactions()
    return replace(log, target=(log.target > 3).astype(np.float32))


@pytest.mark.parametrize(
    ("how", "known"),
    [
        ({"items": "clustered"}, "items"),
        ({"items": "modulo"}, "items"),
        ({"items": "mixed"}, "items"),
        ({"users": "clustered", "items": "full"}, "users"),
        ({"model": DIN}, None),
        ({"loss": "ranking"}, None),
        ({"model": MMoE}, None),
    ],
    ids=str,
)
def test_what_sees_more_than_rows_is_not_collapsed(log, how, known):
    features = (
        [feature(15)] if known == "users" else [],
        [feature(20)] if known == "items" else [],
    )
    model = recommender(log, **how, known=features)
    samples = Samples(model, log)
    assert len(samples) == len(log)
    batch = samples.take(torch.arange(len(log)))
    assert batch.weight is None
    assert samples.constant == 0.0
    assert torch.equal(batch.target, torch.tensor(log.target))
    assert torch.equal(batch.item, torch.tensor(log.item.astype(np.int64)))
    samples.follow()
    assert len(samples) == len(log)
    assert_exact(model, log, samples)


def test_further_columns_are_not_collapsed(log):
    table = log.to_frame().with_columns(shop=pl.Series(np.arange(len(log)) % 5))
    log = celrec.read(table, columns=["shop"])
    samples = Samples(recommender(log), log)
    assert len(samples) == len(log)
    assert samples.take(torch.tensor([3, 4])).columns.tolist() == [[3], [4]]


def test_nobody_has_to_collapse(log):
    samples = Samples(recommender(log), log, make_pair_statistics=False)
    assert len(samples) == len(log)
    assert samples.take(torch.tensor([2])).weight is None


def test_an_empty_log_has_no_samples(log):
    samples = Samples(recommender(log), log[:0])
    assert len(samples) == 0
    assert len(samples.take(torch.arange(0)).user) == 0
