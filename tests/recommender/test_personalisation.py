import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, read
from celrec.config.offline import DescentConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.models.interaction import LOSSES
from celrec.offline.gradient_descent import GradientDescent
from celrec.recommender.batch import Batch
from celrec.recommender.clusters import personalise
from celrec.recommender.model import Model
from tests.data.logs import logs


@pytest.fixture(autouse=True)
def seeded_rows():
    torch.manual_seed(0)


def clustered(ids, clusters=3):
    table = ClusteredEmbedding(ids, 4, max_clusters=min(clusters + 1, ids))
    table.start_from(torch.arange(ids) % min(clusters, ids))
    return table


def make_model(log, users="full", biased=False):
    kinds = {"full": lambda ids: FullEmbedding(ids, 4), "clustered": clustered}
    sides = kinds[users](log.num_users), clustered(log.num_items)
    model = Model(*map(BiasedEmbedding, sides)) if biased else Model(*sides)
    with torch.no_grad():
        for bias in model.biases or ():
            bias.normal_()
    return model


def everyone(log):
    """Every user with every item, the unseen ones too."""
    ids = torch.cartesian_prod(torch.arange(-1, log.num_users), torch.arange(-1, log.num_items))
    return Batch.pairs(ids[:, 0], ids[:, 1])


@settings(max_examples=40)
@given(logs(), st.integers(0, 6), st.sampled_from(["full", "clustered"]), st.booleans())
def test_those_with_more_interactions_get_rows_and_predictions_stay(log, above, users, biased):
    model = make_model(log, users, biased)
    before = copy.deepcopy(model.state_dict())
    personal = personalise(model, log, above)
    assert torch.equal(personal(everyone(log)), model(everyone(log)))
    sides = [(personal.item_rows, log.item, log.num_items)]
    if users == "clustered":
        sides.append((personal.user_rows, log.user, log.num_users))
    else:
        assert type(personal.user_rows) is FullEmbedding
    for table, ids, size in sides:
        assert type(table) is MixedEmbedding
        expected = [ids.tolist().count(j) > above for j in range(size)]
        assert table.private(torch.arange(size)).tolist() == expected
    with torch.no_grad():  # nothing of the copy is the model's own
        for value in [*personal.parameters(), *personal.buffers()]:
            value.add_(1)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


def test_biases_and_the_mean_are_those_of_the_model():
    log = Planted(rows=200, users=10, items=12, dim=2, item_clusters=3).interactions()
    model = make_model(log, biased=True)
    personal = personalise(model, log)
    for found, expected in zip(personal.biases, model.biases, strict=True):
        assert torch.equal(found, expected)
        assert found is not expected


def test_interactions_with_unseen_ids_count_for_the_id_that_is_known():
    known = read({"user": [1, 2], "item": [1, 2], "rating": [1.0, 2.0]})
    log = read({"user": [9, 9, 2], "item": [1, 1, 9], "rating": [1.0] * 3}, like=known)
    personal = personalise(make_model(log), log, above=1)
    assert personal.items.private(torch.arange(2)).tolist() == [True, False]


def test_an_empty_log_makes_nobody_personal():
    log = Planted(rows=200, users=10, items=12, dim=2, item_clusters=3).interactions()
    personal = personalise(make_model(log, "clustered"), log[:0])
    assert personal.users.private_rows == personal.items.private_rows == 0


def test_tables_that_are_not_clustered_are_copied():
    log = Planted(rows=200, users=10, items=12, dim=2, item_clusters=3).interactions()
    model = Model(ModuloEmbedding(10, 4, rows=3), FullEmbedding(12, 4))
    personal = personalise(model, log)
    assert (type(personal.users), type(personal.items)) == (ModuloEmbedding, FullEmbedding)
    assert personal.users.weight is not model.users.weight
    again = personalise(personalise(make_model(log), log, 1000), log)
    assert again.items.private_rows == 0  # a mixed table stays as it is


def test_a_negative_limit_is_told():
    log = Planted(rows=200, users=10, items=12, dim=2, item_clusters=3).interactions()
    with pytest.raises(CelrecError, match="above must not be negative, not -1"):
        personalise(make_model(log), log, -1)


def test_a_strong_pull_keeps_rows_near_where_they_come_from():
    log = Planted(rows=2000, users=30, items=20, dim=3, item_clusters=4).interactions()
    apart = []
    for pull in (0.0, 1e3, 1e6):
        torch.manual_seed(0)
        personal = personalise(make_model(log, "clustered"), log)
        before = [table.weight.detach().clone() for table in (personal.users, personal.items)]
        how = DescentConfig(
            learning_rate=1e-2, projection="none", pull_to_anchor=pull, bounded=True
        )
        descent = GradientDescent(personal, log, how)
        for _ in range(50):
            descent.step()
        after = [table.weight.detach() for table in (personal.users, personal.items)]
        apart.append([float((b - a).norm()) for a, b in zip(before, after, strict=True)])
    for side in (0, 1):
        assert apart[0][side] > 1.2 * apart[1][side] > 100 * apart[2][side] > 0
        assert apart[2][side] < 1e-2


@pytest.mark.parametrize("average", [False, True])
def test_without_a_pull_rows_move_as_those_of_a_full_table(average):
    log = Planted(rows=500, users=15, items=12, dim=3, item_clusters=4).interactions()
    assert set(log.item.tolist()) == set(range(12))
    model = make_model(log)
    personal = personalise(model, log)
    full = Model(copy.deepcopy(model.users), FullEmbedding(12, 4))
    with torch.no_grad():
        full.items.weight.copy_(model.items(torch.tensor([*range(12), -1])))
    how = DescentConfig(learning_rate=1e-3, average=average, pull_to_anchor=0.0)
    descents = [GradientDescent(each, log, how) for each in (personal, full)]
    for _ in range(5):
        assert descents[0].step() == pytest.approx(descents[1].step(), rel=1e-6)
    torch.testing.assert_close(personal(everyone(log)), full(everyone(log)))


def test_the_copy_has_the_same_loss():
    log = Planted(rows=50, users=5, items=4, item_clusters=2).interactions()
    items = ClusteredEmbedding(log.num_items, 2, max_clusters=2)
    for loss in LOSSES.values():
        assert (
            personalise(Model(FullEmbedding(log.num_users, 2), items, loss=loss), log).loss is loss
        )


def test_sums_over_levels_are_refused():
    log = Planted(rows=50, users=5, items=4, item_clusters=2).interactions()
    items = LevelledEmbedding(log.num_items, 2, max_clusters=2)
    with pytest.raises(CelrecError, match="personalise is for tables of one level"):
        personalise(Model(FullEmbedding(log.num_users, 2), items), log)
