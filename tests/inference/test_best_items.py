import numpy as np

from celrec.data.seen_items import SeenItems
from celrec.embeddings.full import FullEmbedding
from celrec.inference.top_items import best_items
from celrec.recommender.model import Model


def test_they_are_the_highest_products_of_what_is_new():
    model = Model(FullEmbedding(4, 3), FullEmbedding(9, 3))
    seen = SeenItems()
    seen.add([0, 0, 1], [3, 5, 8])
    found = best_items(model, np.zeros(9, np.int64), np.array([0, 1, 2]), 4, seen)
    scores = (model.users.weight @ model.items.weight.T).detach().numpy()[:3, :9]
    scores[[0, 0, 1], [3, 5, 8]] = -np.inf
    assert found.tolist() == np.argsort(-scores, 1)[:, :4].tolist()
