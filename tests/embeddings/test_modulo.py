import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.hashing import ModuloEmbedding


def rows_of(ids, rows, seed=0):
    table = ModuloEmbedding(1_000_000, 1, rows=rows, seed=seed)
    return table.row_of(torch.as_tensor(ids)).numpy()


def chi_square(found, rows):
    """How far the sizes are from equal: about 1 if ids fall at random."""
    expected = len(found) / rows
    return np.square(np.bincount(found, minlength=rows) - expected).sum() / expected / (rows - 1)


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("rows", [2, 7, 64, 1000, 1024])
def test_rows_have_about_as_many_ids_each_as_chance_would_give_them(rows, seed):
    # Four standard deviations of a chi-square variable with rows - 1 degrees of freedom.
    bound = 1 + 4 * np.sqrt(2 / (rows - 1))
    for ids in (np.arange(100_000), np.arange(100_000) * 1024, -np.arange(100_000)):
        assert chi_square(rows_of(ids, rows, seed), rows) < bound


def test_neighbouring_ids_fall_in_unrelated_rows():
    # Were it id mod rows, or the like, the step from one id to the next would often be the same.
    found = rows_of(np.arange(100_000), 16)
    assert chi_square((np.diff(found) % 16), 16) < 3


@given(st.integers(0, 2**70), st.integers(0, 2**70))
def test_another_seed_gives_another_map(first, second):
    shared = np.mean(rows_of(np.arange(2000), 50, first) == rows_of(np.arange(2000), 50, second))
    if (first - second) % 2**31 == 0:
        assert shared == 1
    else:
        assert shared < 0.1


def test_ids_that_share_a_row_under_one_seed_do_not_under_another():
    first, second = rows_of(np.arange(5000), 50, 0), rows_of(np.arange(5000), 50, 1)
    together = first[:, None] == first
    still = second[:, None] == second
    np.fill_diagonal(together, False)
    assert still[together].mean() == pytest.approx(1 / 50, abs=0.005)


def test_the_map_is_the_same_on_every_machine_and_in_every_release():
    # A table that was saved has no use for any other map.
    assert rows_of([0, 1, 2, 1000, -1, 2**40], 10, 0).tolist() == [3, 3, 4, 3, 5, 3]


def test_unseen_ids_are_hashed_like_any_other():
    small, large = ModuloEmbedding(3, 2, rows=10), ModuloEmbedding(1000, 2, rows=10)
    ids = torch.arange(-50, 1000)
    assert torch.equal(small.row_of(ids), large.row_of(ids))
    assert len(small.row_of(ids).unique()) == 10


@pytest.mark.parametrize("rows", [0, -2])
def test_there_has_to_be_a_row(rows):
    with pytest.raises(CelrecError, match="rows must be positive"):
        ModuloEmbedding(3, 2, rows=rows)


def test_there_may_be_more_rows_than_ids():
    table = ModuloEmbedding(3, 2, rows=100)
    assert table.memory().total == 100 * 2 * 4
    assert table(torch.arange(3)).shape == (3, 2)
