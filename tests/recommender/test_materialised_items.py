import numpy as np
import pytest
import torch

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.inference.top_k import TopK
from celrec.recommender.model import Model


def mixture(ids, dim):
    table = PosteriorEmbedding(ids, dim, rows=4)
    table.evidence.random_(0, 200)
    return table


@pytest.mark.parametrize("biased", [False, True])
def test_the_same_is_recommended_and_the_model_is_left_as_it_was(biased):
    torch.manual_seed(1)
    users, items = FullEmbedding(6, 3), mixture(30, 3)
    if biased:
        users, items = BiasedEmbedding(users), BiasedEmbedding(items)
        items.bias.data.normal_()
    model = Model(users, items)
    quick = model.with_materialised_items()
    assert model.items is items
    assert type(quick.items).__name__ == "Materialised"
    assert quick.users is model.users
    asked, priority = np.arange(-1, 6), np.arange(30)
    slow_best = TopK(model, priority).recommend(asked, 10)
    quick_best = TopK(quick, priority).recommend(asked, 10)
    np.testing.assert_array_equal(slow_best.items, quick_best.items)
    np.testing.assert_allclose(slow_best.scores, quick_best.scores, atol=1e-5)


def test_items_that_share_rows_stay_together():
    model = Model(FullEmbedding(3, 2), ClusteredEmbedding(5, 2, max_clusters=2))
    assert model.with_materialised_items() is model
