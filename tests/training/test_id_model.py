import pytest
import torch

import celrec
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.din import DIN
from celrec.training.feature_tables import FeatureTables
from celrec.training.id_model import IdModel

DIM = 4


@pytest.fixture
def log():
    return celrec.Planted(rows=3000, users=30, items=40, dim=2, item_clusters=3).interactions()


def recommender(log, model=DIN, clusters=5, length=6):
    torch.manual_seed(0)
    width = DIM + model.extra_columns
    nothing = FeatureTables([], width)
    made = IdModel(
        FullEmbedding(log.num_users, width),
        ClusteredEmbedding(log.num_items, width, max_clusters=clusters),
        model(DIM),
        nothing,
        nothing,
        history_length=length if model is DIN else 0,
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

    model.normal = draw
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
