import torch

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.recommender.clusters import remaining_clusters
from celrec.recommender.model import Model


def test_ids_that_shared_a_row_and_have_none_of_their_own_still_share_one():
    shared = ClusteredEmbedding(6, 2, max_clusters=3)
    shared.split(0, torch.tensor([3, 4, 5]))
    shared.split(1, torch.tensor([5]))
    warm = torch.tensor([True, False, False, False, False, True])
    model = Model(FullEmbedding(2, 2), MixedEmbedding.personalise(shared, warm))
    assert remaining_clusters(model, "items").tolist() == [-1, 0, 0, 1, 1, -1]
    assert remaining_clusters(model, "users") is None
