import numpy as np
import pytest
import torch

from celrec.config.online import RowDescentConfig
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.online.plain_tables import RowTableTrainer

DIM = 3


@pytest.mark.parametrize("steps", [(15,), (6, 14, 15)])
@pytest.mark.parametrize("non_negative", [False, True])
def test_new_rows_begin_about_that_of_unseen_ids_whoever_comes_with_them(steps, non_negative):
    table = FullEmbedding(5, DIM)
    before = table.weight.detach().clone()
    how = RowDescentConfig(non_negative=non_negative)
    side = RowTableTrainer("users", table, how, spread=0.1, seed=7)
    for ids in steps:
        side.grow(ids)
    noise = np.random.default_rng([7, 0]).standard_normal((15, DIM), np.float32)
    expected = before[-1] + 0.1 * torch.from_numpy(noise[5:])
    rows = table.weight.detach()
    assert rows[:5].equal(before[:5])
    assert rows[5:-1].equal(expected.abs() if non_negative else expected)
    assert rows[-1].equal(before[-1])


def test_rows_shared_by_chance_stay_as_they_are_when_ids_come():
    table = ModuloEmbedding(5, DIM, rows=2)
    before = table.weight.detach().clone()
    side = RowTableTrainer("users", table, RowDescentConfig(), spread=0.1)
    side.grow(50)
    assert table.num_embeddings == 50
    assert table.weight.detach().equal(before)
    assert side.lookup(torch.tensor([49])).shape == (1, DIM)
