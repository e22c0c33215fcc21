"""Which users belong to which process."""

import numpy as np
import polars as pl
import pytest

from celrec.clustering.ranks import Ranks
from celrec.training.own_users import OwnUsers, of_all


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_user_belongs_to_one_process_whatever_kind_the_id_has(size):
    users = pl.Series([*range(2000), *range(500)])
    shares = [OwnUsers(Ranks(rank, size)).places(users) for rank in range(size)]
    np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.arange(len(users)))
    assert max(map(len, shares)) < 1.2 * len(users) / size
    for rank, share in enumerate(shares):
        own = OwnUsers(Ranks(rank, size))
        np.testing.assert_array_equal(own.places(users.cast(pl.String)), share)
        assert set(share[share >= 2000] - 2000) <= set(share)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_users_are_numbered_among_all_by_their_places_in_their_processes(size):
    users = pl.Series([f"user {one}" for one in range(300)])
    numbers = of_all(users, Ranks(0, size))
    for rank in range(size):
        own = OwnUsers(Ranks(rank, size)).places(users)
        np.testing.assert_array_equal(numbers[own], np.arange(len(own)) * size + rank)
