import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import UNSEEN, CelrecError, IdMap, Interactions, read
from tests.data.logs import logs


def test_columns_cannot_be_changed():
    log = read({"user": [1], "item": [1], "rating": [1.0], "time": [1]})
    for name in ("user", "item", "target", "timestamp"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(log, name)[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        log.user = log.item


def test_freezing_a_log_leaves_the_callers_array_alone():
    users = np.zeros(2, np.int32)
    log = Interactions(users, users, np.ones(2, np.float32), None, IdMap([1]), IdMap([1]))
    users[0] = 0
    assert log.user.base is users


@given(logs(), st.data())
def test_rows_are_chosen_as_numpy_does(log, data):
    start, stop = data.draw(st.integers(0, len(log))), data.draw(st.integers(0, len(log)))
    rows = np.array(data.draw(st.lists(st.integers(0, len(log) - 1))), np.int64)
    for chosen in (slice(start, stop), rows, log.target > 2):
        part = log[chosen]
        assert np.array_equal(part.user, log.user[chosen])
        assert np.array_equal(part.item, log.item[chosen])
        assert np.array_equal(part.target, log.target[chosen])
        assert (part.timestamp is None) == (log.timestamp is None)
        assert (part.num_users, part.num_items) == (log.num_users, log.num_items)


def test_a_slice_shares_memory():
    log = read({"user": [1, 2, 3], "item": [1, 1, 1], "rating": [1.0] * 3})
    assert np.shares_memory(log.user, log[1:].user)


@given(logs(), st.data())
def test_compact_keeps_the_rows_and_only_the_ids_in_them(log, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(log) - 1))), np.int64)
    features = pl.DataFrame({"id": log.item_ids.ids})
    log = dataclasses.replace(log, item_features=features)
    part = log[rows].compact()
    assert part.to_frame().equals(log[rows].to_frame())
    assert (part.user_counts > 0).all()
    assert (part.item_counts > 0).all()
    assert part.item_features["id"].to_list() == part.item_ids.ids.to_list()


def test_unseen_ids_survive_and_are_not_counted():
    train = read({"user": [1, 2], "item": [3, 4], "rating": [1.0, 2.0]})
    test = read({"user": [2, 9], "item": [3, 3], "rating": [1.0, 2.0]}, like=train)
    assert test.user_counts.tolist() == [0, 1]
    assert test.to_frame()["user"].to_list() == [2, None]
    assert test.compact().user.tolist() == [0, UNSEEN]


def test_a_map_that_grows_later_does_not_change_the_log():
    log = read({"user": [1], "item": [1], "rating": [1.0]})
    log.user_ids.extend([7, 8])
    assert log.num_users == 1
    assert log[:1].num_users == 1
    assert log.user_counts.tolist() == [1]


def test_wrong_columns_are_named():
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    ids, target = IdMap([1]), np.ones(2, np.float32)
    with pytest.raises(CelrecError, match="item has shape"):
        Interactions(two, one, target, None, ids, ids)
    with pytest.raises(CelrecError, match="user ids must lie in -1 … 0"):
        Interactions(two + 1, two, target, None, ids, ids)
    with pytest.raises(CelrecError, match="item_features must have one row per id"):
        Interactions(two, two, target, None, ids, ids, item_features=pl.DataFrame({"a": [1, 2]}))
