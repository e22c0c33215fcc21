import numpy as np
import polars as pl
import pytest
import torch

from celrec import Planted, read
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.models.deepfm import DeepFM
from celrec.recommender.clusters import TiedItems
from celrec.recommender.model import Model

ITEMS = 12


def clustered():
    table = ClusteredEmbedding(ITEMS, 3, max_clusters=4)
    table.start_from(torch.arange(ITEMS) % 4)
    return table


def personal(shared):
    table = PersonalEmbedding(shared)
    table.give(torch.tensor([2, 5, 6]))
    table.offset.data.normal_()
    return table


TABLES = {
    "cel": (clustered, 4),
    "int8": (lambda: QuantisedEmbedding(clustered()), 4),
    "packed": (lambda: QuantisedEmbedding(clustered(), packed=True), 4),
    "personal": (lambda: personal(clustered()), 7),
    "full": (lambda: FullEmbedding(ITEMS, 3), ITEMS),
    "modulo": (lambda: ModuloEmbedding(ITEMS, 3, rows=3), 3),
    "posterior": (lambda: PosteriorEmbedding(ITEMS, 3, rows=2), ITEMS),
}


def partners(labels):
    """Which pairs have equal labels."""
    return labels[:, None] == labels


@pytest.mark.parametrize("kind", TABLES)
def test_items_with_equal_labels_have_equal_vectors(kind):
    make, count = TABLES[kind]
    table = make()
    alike = TiedItems.of(Model(FullEmbedding(2, 3), table), ITEMS)
    assert len(np.unique(alike.vector)) == count
    assert alike.score is alike.vector
    assert alike.own is None
    with torch.no_grad():
        vectors = table(torch.arange(ITEMS))
    same = partners(alike.vector)
    for one in range(ITEMS):
        for two in np.flatnonzero(same[one]):
            assert torch.equal(vectors[one], vectors[two])
    if kind not in ("posterior", "modulo"):  # where one is enough, they are not told apart
        assert len(torch.unique(vectors, dim=0)) == count


def test_who_shares_a_row_is_in_one_cluster_whatever_is_added_to_it():
    alike = TiedItems.of(Model(FullEmbedding(2, 3), personal(clustered())), ITEMS)
    assert (partners(alike.cluster) == partners(np.arange(ITEMS) % 4)).all()
    assert not partners(alike.vector)[2].sum() > 1


def test_biases_are_ones_own():
    items = BiasedEmbedding(clustered())
    items.bias.data.normal_()
    alike = TiedItems.of(Model(BiasedEmbedding(FullEmbedding(2, 3)), items), ITEMS - 2)
    assert alike.own.tolist() == items.bias[: ITEMS - 2].tolist()
    assert (partners(alike.score) == partners(np.arange(ITEMS - 2) % 4)).all()


def test_networks_may_read_biases_as_they_like():
    items = BiasedEmbedding(clustered())
    tied = TiedItems.of(Model(BiasedEmbedding(FullEmbedding(2, 3)), items, DeepFM(3)), ITEMS)
    assert tied.own is None
    assert len(np.unique(tied.score)) == ITEMS
    assert len(np.unique(tied.vector)) < ITEMS


def test_features_tell_items_apart_that_have_one_row():
    rows = Planted(200, 5, ITEMS, dim=2, item_clusters=2).interactions().to_frame()
    genres = [["a", "b"], ["a"], None, ["a"]] * 3
    years = [1, 1, 1, 2] * 3
    features = pl.DataFrame({"item": range(ITEMS), "genres": genres, "year": years})
    log = read(rows, item_features=features)
    model = make_model(log, Plan("cel", "2", rank=4, model="deepfm"))
    model.items.start_from(torch.arange(ITEMS) % 2)
    alike = TiedItems.of(model, ITEMS)
    shown = log.item_features.rows()
    expected = [
        [one % 2 == two % 2 and shown[one] == shown[two] for two in range(ITEMS)]
        for one in range(ITEMS)
    ]
    assert (partners(alike.score) == np.array(expected)).all()
    assert (partners(alike.vector) == partners(np.arange(ITEMS) % 2)).all()
