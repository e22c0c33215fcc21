from types import SimpleNamespace

import numpy as np
import pytest
import torch

from celrec import Planted, Split
from celrec.config.plan import Plan
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.offline.fitting import fit
from celrec.recommender.clusters import split_tree
from celrec.recommender.model import Model


def test_only_clusters_that_are_there_are_in_the_tree():
    items = ClusteredEmbedding(6, 2, max_clusters=5)
    items.split(0, torch.tensor([1, 2, 3]))
    items.split(1, torch.tensor([3]))
    model = Model(FullEmbedding(2, 2), items)
    assert split_tree(model, "items").tolist() == [-1, 0, 1]
    assert split_tree(model, "users") is None


def test_rows_of_ones_own_beside_a_cluster_change_nothing():
    items = ClusteredEmbedding(3, 2, max_clusters=2)
    items.split(0, torch.tensor([2]))
    model = SimpleNamespace(tables={"items": PersonalEmbedding(items)})
    assert split_tree(model, "items").tolist() == [-1, 0]


@pytest.mark.parametrize("compression", ["5", "auto"])
def test_training_keeps_the_tree(compression):
    log = Planted(6_000, 60, 50, dim=3, item_clusters=5, noise=0.1).interactions()
    model = fit(Split.random(log), Plan(compression=compression, rank=4)).model
    tree = split_tree(model, "items")
    assert len(tree) == model.item_rows.num_clusters > 1
    assert tree[0] == -1
    assert (tree[1:] >= 0).all()
    assert (tree < np.arange(len(tree))).all()
