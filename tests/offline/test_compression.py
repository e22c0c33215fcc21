from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, ClusteredEmbedding, FullEmbedding, LevelledEmbedding, Planted
from celrec.cel.levels import LevelsConfig
from celrec.config.building import make_model
from celrec.config.offline import CompressionConfig
from celrec.config.plan import Plan
from celrec.embeddings.personal import BiasedEmbedding
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.offline.compression import Compression
from celrec.recommender.model import Model

USERS, ITEMS = 30, 20


def planted():
    return Planted(600, USERS, ITEMS, dim=2, seed=1).interactions()


@pytest.fixture(scope="module")
def log():
    return planted()


def full_model(log, dim, seed=0, *, biases=True):
    """Drawn as if it had been fitted, with a bias for each id."""
    model = make_model(log, Plan("full", model="mf" if biases else "nmf", rank=dim, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in model.row_tables.values():
            table.weight.normal_(0, 0.4, generator=generator)
            if not biases:
                table.weight.abs_()
        if model.biases:
            model.biases.mean.fill_(3.5)
            for bias in (model.biases.users, model.biases.items):
                bias.normal_(0, 0.3, generator=generator)
    return model


def predictions(model):
    users, items = torch.arange(USERS), torch.arange(ITEMS)
    with torch.no_grad():
        return model.model(model.users(users)[:, None], model.items(items)[None])


def table_of(ids, width, rows, levels=1):
    if rows is None:
        return FullEmbedding(ids, width)
    if levels == 1:
        return ClusteredEmbedding(ids, width, max_clusters=rows)
    return LevelledEmbedding(ids, width, max_clusters=rows, levels=levels)


def compressed(log, full, kind, dim, rows=(None, None), levels=1, **how):
    """`kind`: biases of their own ("own"), in the row ("row"), or non-negative rows ("nmf")."""
    width = dim + (kind == "row")
    sizes = zip((USERS, ITEMS), rows, strict=True)
    tables = [table_of(ids, width, count, levels) for ids, count in sizes]
    if kind == "own":
        tables = [BiasedEmbedding(table) for table in tables]
    model = Model(*tables, DotProduct() if kind == "nmf" else BiasedDotProduct())
    config = CompressionConfig(levels=LevelsConfig(non_negative=kind == "nmf"), **how)
    Compression(model, full, log, config).run()
    return model


def weights(log, prior=10.0):
    return np.outer(log.user_counts + prior, log.item_counts + prior)


def slow_loss(log, model, full):
    """The weighted squared difference of all predictions, one matrix against the other."""
    apart = (predictions(model) - predictions(full)).double().numpy()
    return float((weights(log) * apart**2).sum())


@pytest.mark.parametrize("kind", ["own", "row"])
def test_with_a_row_for_each_id_predictions_stay(log, kind):
    full = full_model(log, 3)
    model = compressed(log, full, kind, 3)
    torch.testing.assert_close(predictions(model), predictions(full), atol=1e-4, rtol=1e-4)
    unseen = torch.tensor(-1)
    before = full.model(full.users(unseen), full.items(unseen))
    after = model.model(model.users(unseen), model.items(unseen))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


def test_a_lower_rank_is_close_to_the_best_there_is(log):
    full = full_model(log, 4)
    model = compressed(log, full, "row", 2, rounds=0)
    apart = predictions(full).double().numpy()
    w = log.user_counts + 10.0, log.item_counts + 10.0
    for axis, weight in ((0, w[0]), (1, w[1])):
        apart = apart - np.average(apart, axis=axis, weights=weight, keepdims=True)
    values = np.linalg.svd(apart, compute_uv=False)
    found = ((predictions(model) - predictions(full)).double() ** 2).sum()
    assert float(found) < 1.3 * float((values[2:] ** 2).sum())


@pytest.mark.parametrize("kind", ["own", "row", "nmf"])
@pytest.mark.parametrize(("rows", "levels"), [((None, 5), 1), ((6, 5), 1), ((None, 3), 2)])
def test_shared_rows_are_the_best_for_their_codes(log, kind, rows, levels):
    """No small change of a row of a first level lowers the loss over all pairs."""
    full = full_model(log, 2)
    model = compressed(log, full, kind, 2, rows, levels, rounds=25)
    best = slow_loss(log, model, full)
    table = model.tables["items"]
    level = table if levels == 1 else table.clustered_levels[0]
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        step = 0.02 * torch.randn(level.weight.shape, generator=generator)
        with torch.no_grad():
            before = level.weight.clone()
            level.weight += step
            if kind == "nmf" and levels == 1:
                level.weight.clamp_(min=0)
            # Below 0, the loss of a non-negative model may be less.
            allowed = kind != "nmf" or float(table(torch.arange(ITEMS)).detach().min()) >= 0
            assert not allowed or slow_loss(log, model, full) > best * (1 - 1e-3)
            level.weight.copy_(before)


@pytest.mark.parametrize("kind", ["own", "row", "nmf"])
def test_no_item_gains_by_another_cluster(log, kind):
    """A slow reassignment over all predictions: what is left to gain is rounding."""
    full = full_model(log, 2)
    model = compressed(log, full, kind, 2, (None, 5), rounds=25)
    table, best = model.tables["items"], slow_loss(log, model, full)
    for item in range(ITEMS):
        own = int(table.assignment[item])
        for cluster in range(table.num_clusters):
            table.assignment[item] = cluster
            assert slow_loss(log, model, full) > best * (1 - 1e-2)
        table.assignment[item] = own


@given(st.integers(0, 20))
def test_rounds_never_raise_the_loss(seed):
    log = planted()
    full = full_model(log, 3, seed)
    losses = [
        slow_loss(log, compressed(log, full, "row", 2, (4, 4), 2, rounds=rounds), full)
        for rounds in (0, 1, 4)
    ]
    assert losses[1] <= losses[0] * (1 + 1e-4)
    assert losses[2] <= losses[1] * (1 + 1e-4)


@pytest.mark.parametrize("biases", [True, False])
def test_non_negative_rows_come_close_to_positive_predictions(log, biases):
    full = full_model(log, 2, biases=biases)
    model = compressed(log, full, "nmf", 8, (None, 6), 2)
    vectors = [model.users(torch.arange(USERS)), model.items(torch.arange(ITEMS))]
    assert min(float(one.detach().min()) for one in vectors) >= -1e-5
    assert (
        slow_loss(log, model, full) < 0.02 * (weights(log) * predictions(full).numpy() ** 2).sum()
    )


@pytest.mark.parametrize("kind", ["own", "row", "nmf"])
def test_more_levels_and_rows_come_closer(log, kind):
    full = full_model(log, 3)
    losses = [
        slow_loss(log, compressed(log, full, kind, 3, (None, rows), levels), full)
        for rows, levels in ((2, 1), (2, 2), (6, 2), (6, 3))
    ]
    assert losses == sorted(losses, reverse=True)


def test_a_factorisation_without_biases_can_be_compressed_to_one_with(log):
    full = full_model(log, 2, biases=False)
    model = compressed(log, full, "own", 2)
    torch.testing.assert_close(predictions(model), predictions(full), atol=1e-4, rtol=1e-4)


def test_the_same_seed_gives_the_same_model(log):
    full = full_model(log, 3)
    first, second = (compressed(log, full, "nmf", 3, (4, 4), 2) for _ in range(2))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])


def test_networks_are_refused(log):
    network = make_model(log, Plan("full", model="deepfm", rank=4))
    full = full_model(log, 3)
    with pytest.raises(CelrecError, match="DeepFM is not a dot product; give a factorisation"):
        Compression(full, network, log, CompressionConfig())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": -1}, "rounds must not be negative, not -1"),
        ({"prior": 0}, "prior must be positive, not 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(CelrecError, match=message):
        replace(CompressionConfig(), **wrong)
