import copy

import pytest
import torch

import celrec
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.dien import DIEN
from celrec.models.din import DIN
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.models.interaction import LOSSES
from celrec.recommender import model as model_module
from celrec.recommender.batch import HISTORY, FeatureTables
from celrec.recommender.model import Model
from celrec.recommender.vectors import Materialised

DIM = 4


@pytest.fixture
def log():
    return celrec.Planted(rows=3000, users=30, items=40, dim=2, item_clusters=3).interactions()


def recommender(log, model=DIN, clusters=5, length=6):
    torch.manual_seed(0)
    width = DIM + model.extra_columns
    nothing = FeatureTables([], width)
    made = Model(
        FullEmbedding(log.num_users, width),
        ClusteredEmbedding(log.num_items, width, max_clusters=clusters),
        model(DIM),
        nothing,
        nothing,
        history_length=length if model.uses_history else 0,
    )
    made.remember(log)
    return made


@pytest.mark.parametrize(
    ("changes", "factorised"),
    [
        ({}, True),
        ({"model": DotProduct()}, True),
        ({"model": BiasedDotProduct()}, False),  # biases are shared as rows are
        ({"model": DeepFM(3)}, False),
        ({"loss": LOSSES["cross-entropy"]}, False),
        ({"columns": {"shop": FullEmbedding(2, DIM)}}, False),
    ],
)
def test_a_factorisation_is_a_dot_product_of_rows_and_squared_error(changes, factorised):
    model = Model(FullEmbedding(3, DIM), FullEmbedding(5, DIM), **changes)
    assert model.factorised is factorised


def test_any_model_may_have_biases_in_tables_of_their_own(log):
    tables = FullEmbedding(log.num_users, DIM), FullEmbedding(log.num_items, DIM)
    apart = Model(*map(BiasedEmbedding, tables), DeepFM(DIM))
    assert not apart.factorised
    assert apart.biases is None
    assert tuple(apart.tables.values()) == tables
    before = apart.predict(log[:5])
    with torch.no_grad():
        apart.items.bias += 1
    torch.testing.assert_close(apart.predict(log[:5]), before + 1)


def test_all_tables_can_be_replaced():
    columns = {name: FullEmbedding(2, DIM) for name in ("shop", "city")}
    model = Model(FullEmbedding(3, DIM), FullEmbedding(5, DIM), columns=columns)
    before = model.whole_tables
    model.replace_tables(lambda name, _: Materialised(before[name]))
    assert {name: table.source for name, table in model.whole_tables.items()} == before


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


@pytest.mark.parametrize(
    "items",
    [
        lambda number: PreHashEmbedding(number, DIM, rows=6, k=2),
        lambda number: PreHashEmbedding(number, DIM, rows=6),
        lambda number: DeepHashEmbedding(number, DIM, rows=30),
    ],
)
@pytest.mark.parametrize("beyond", [False, True])
def test_vectors_of_targets_and_histories_are_made_once_for_each_item(
    log, items, beyond, monkeypatch
):
    once = recommender(log)
    once.items = items(log.num_items)
    each = copy.deepcopy(once)
    batch = once.batch(log, slice(500, 600), own=True)
    if beyond:  # such ids have vectors of their own with some methods
        batch.history[::7, -1] = log.num_items + 3
    asked = []
    once.items.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0].numel()))
    outputs = []
    for model in (once, each):
        if model is each:
            monkeypatch.setattr(model_module, "all_vectors", lambda *_: None)
        model.train()
        outputs.append(model(batch))
        outputs[-1].square().sum().backward()
    assert asked == ([100, 600] if beyond else [log.num_items + 1])
    torch.testing.assert_close(*outputs)
    for one, other in zip(once.parameters(), each.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for one, other in zip(once.buffers(), each.buffers(), strict=True):  # what it was watched at
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("make", [DIN, DIEN])
def test_rows_of_histories_are_read_where_they_lie(log, make):
    model = recommender(log, make)
    model.items.split(0, torch.arange(0, log.num_items, 2))
    batch = model.batch(log, slice(500, 600), own=True)
    batch.history[::7, -1] = log.num_items + 3  # unseen
    given = {"users": model.users(batch.user), "items": model.items(batch.item)}
    given[HISTORY] = model.items(batch.history)
    learned = list(model.parameters())
    slopes = [
        torch.autograd.grad(output.square().sum(), learned, allow_unused=True)
        for output in (model(batch), model.output_from(batch, given))
    ]
    torch.testing.assert_close(model(batch), model.output_from(batch, given))
    torch.testing.assert_close(*slopes)


def test_what_a_probe_puts_in_the_place_of_rows_is_seen_in_histories(log):
    model = recommender(log)
    batch = model.batch(log, slice(500, 600), own=True)
    asked = []

    def probe(ids):
        asked.append(ids.shape)
        return torch.ones(*ids.shape, DIM)

    with model.items.probing(probe):
        probed = model(batch)
    assert asked == [batch.item.shape, batch.history.shape]
    with torch.no_grad():
        model.items.weight.fill_(1)
    torch.testing.assert_close(probed, model(batch))


def test_a_table_that_watches_is_asked_for_histories(log):
    model = recommender(log)
    model.items = CafeEmbedding(log.num_items, DIM, rows=12)
    assert not model.items.plain
    batch = model.train().batch(log, slice(500, 600), own=True)
    asked = []
    model.items.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0].shape))
    model(batch)
    assert asked == [batch.item.shape, batch.history.shape]


def test_in_training_uncertain_rows_are_drawn_by_their_own_matrices(log):
    model = recommender(log, DeepFM)
    batch = model.batch(log, slice(50), own=True)
    model.items.split(0, torch.arange(0, log.num_items, 2))
    model.deviations = {
        "users": torch.randn(model.users.num_rows, DIM, DIM),
        "items": torch.randn(model.items.num_rows, DIM, DIM),
    }
    numbers = torch.randn(2, 50, DIM)  # items are asked for first
    taken = iter(numbers)

    def draw(shape):
        assert shape == (50, DIM)
        return next(taken)

    model.draw_normal = draw
    vectors = {}
    for (side, ids), drawn in zip(
        (("items", batch.item), ("users", batch.user)), numbers, strict=True
    ):
        table, more = model.tables[side], model.deviations[side]
        vectors[side] = table(ids).clone()
        for n, row in enumerate(table.row_of(ids).tolist()):
            vectors[side][n, :DIM] += more[row] @ drawn[n]
    torch.testing.assert_close(model.train()(batch), model.output_from(batch, vectors))
    settled = model.eval()(batch)  # nothing is drawn any more
    torch.testing.assert_close(settled, model.eval()(batch))
