import pytest
import torch

from celrec import CelrecError, Planted, read
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.models.dot_product import DotProduct
from celrec.offline.factorisation_solver import initialise_factors
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model


@pytest.fixture(autouse=True)
def seeded_rows():
    torch.manual_seed(0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def clustered(ids=9, dim=4):
    table = ClusteredEmbedding(ids, dim, max_clusters=5)
    table.start_from(torch.arange(ids) % 3)
    return table


def biased():
    return Model(BiasedEmbedding(FullEmbedding(6, 4)), BiasedEmbedding(clustered()))


def test_without_biases_the_tables_are_their_own_rows():
    users, items = FullEmbedding(6, 4), clustered()
    model = Model(users, items)
    assert model.biases is None
    assert model.user_rows is model.users is users
    assert model.item_rows is model.items is items
    predicted = model(Batch.pairs(torch.tensor([0, -1]), torch.tensor([8, 2])))
    expected = (users(torch.tensor([0, -1])) * items(torch.tensor([8, 2]))).sum(1)
    torch.testing.assert_close(predicted, expected)


def test_with_biases_they_are_added_to_the_dot_product():
    model = biased()
    with torch.no_grad():
        model.biases.mean.fill_(3.0)
        model.biases.users.copy_(torch.arange(7))
        model.biases.items.copy_(-torch.arange(10))
    user, item = torch.tensor([0, 5, -1]), torch.tensor([8, 2, 99])
    dot = (model.user_rows(user) * model.item_rows(item)).sum(1)
    expected = 3 + torch.tensor([0, 5, 6]) - torch.tensor([8, 2, 9]) + dot
    torch.testing.assert_close(model(Batch.pairs(user, item)), expected)
    assert model.user_rows is model.users.rows
    assert model.item_rows is model.items.rows


def test_biases_are_those_of_the_model_itself():
    model = biased()
    pair = Batch.pairs(torch.tensor([1]), torch.tensor([1]))
    before = model(pair).detach()
    with torch.no_grad():
        for bias in model.biases:
            bias.add_(1)
    torch.testing.assert_close(model(pair).detach(), before + 3)


@pytest.mark.parametrize("first", [True, False])
def test_one_side_alone_cannot_have_biases(first):
    tables = [BiasedEmbedding(FullEmbedding(3, 2)), FullEmbedding(3, 2)]
    with pytest.raises(CelrecError, match="both have biases, or neither"):
        Model(*tables if first else tables[::-1])


def test_an_interaction_without_biases_gets_none():
    tables = BiasedEmbedding(FullEmbedding(3, 2)), BiasedEmbedding(FullEmbedding(3, 2))
    with pytest.raises(CelrecError, match="DotProduct reads no biases; give tables without them"):
        Model(*tables, DotProduct())


def test_a_log_is_predicted_in_parts_as_at_once():
    known = Planted(rows=50, users=6, items=9, dim=2, item_clusters=3).interactions()
    log = read({"user": [0, 77, 3, 1], "item": [1, 2, 88, 4], "rating": [0.0] * 4}, like=known)
    model = biased()
    with torch.no_grad():
        model.biases.users.normal_()
    whole = model.predict(log)
    pairs = Batch.pairs(torch.tensor(log.user).long(), torch.tensor(log.item).long())
    assert torch.equal(whole, model(pairs))
    assert torch.equal(model.outputs(log, chunk=3), whole)
    assert model.predict(log[:0]).shape == (0,)
    assert not whole.requires_grad


def test_a_model_without_biases_starts_with_values_from_0_to_1():
    model = Model(FullEmbedding(6, 4), clustered())
    initialise_factors(model, seeded())
    users, items = model.users.weight.detach(), model.items.weight.detach()
    full = torch.randn(6, 4, generator=seeded()).abs()
    torch.testing.assert_close(users[:6], full / full.max())
    torch.testing.assert_close(users[6], users[:6].mean(0))  # the unseen
    assert (items[:3] > 0).all()
    assert (items <= 1).all()


def test_the_first_row_of_a_cluster_is_the_mean_over_its_members():
    model = Model(FullEmbedding(6, 4), clustered())
    initialise_factors(model, seeded(3))
    generator = seeded(3)
    torch.randn(6, 4, generator=generator)
    full = torch.randn(9, 4, generator=generator).abs()
    full /= full.max()
    for cluster in range(3):
        torch.testing.assert_close(model.items.weight[cluster], full[cluster::3].mean(0))


def test_each_row_may_be_divided_by_its_own_largest_value():
    model = Model(FullEmbedding(6, 4), FullEmbedding(9, 4))
    initialise_factors(model, seeded(), per_row=True)
    assert model.users.weight[:6].amax(1).tolist() == [1] * 6
    assert model.items.weight[:9].amax(1).tolist() == [1] * 9


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModuloEmbedding(3, 4, rows=20),
        lambda: MixedEmbedding(3, 4, shared_rows=2, private_rows=3),
    ],
)
def test_rows_that_nobody_has_start_as_the_mean(make):
    model = Model(make(), clustered())
    initialise_factors(model, seeded())
    rows = model.users.weight.detach()
    used = model.users.row_of(torch.arange(3)).unique()
    unused = torch.tensor([r for r in range(len(rows)) if r not in used])
    assert len(unused)
    full = torch.randn(3, 4, generator=seeded()).abs()
    expected = (full / full.max()).mean(0)
    torch.testing.assert_close(rows[unused], expected.expand(len(unused), -1))


def test_a_model_with_biases_starts_with_small_factors_and_no_biases():
    tables = FullEmbedding(500, 20), ClusteredEmbedding(400, 20, max_clusters=300)
    model = Model(*map(BiasedEmbedding, tables))
    with torch.no_grad():
        for bias in model.biases:
            bias.fill_(7)
    initialise_factors(model, seeded())
    for table in tables:
        assert float(table.weight.detach().mean()) == pytest.approx(0, abs=0.01)
        assert float(table.weight.detach().std()) == pytest.approx(0.1, rel=0.05)
    assert all((bias == 0).all() for bias in model.biases)


@pytest.mark.parametrize("make", [biased, lambda: Model(FullEmbedding(6, 4), clustered())])
def test_a_seed_gives_the_same_start_whatever_was_there(make):
    one, two, other = make(), make(), make()
    for model, seed in ((one, 1), (two, 1), (other, 2)):
        initialise_factors(model, seeded(seed))
    weights = [[m.user_rows.weight, m.item_rows.weight[:3]] for m in (one, two, other)]
    assert all(torch.equal(a, b) for a, b in zip(*weights[:2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*weights[1:], strict=True))
