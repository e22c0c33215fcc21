import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import read
from celrec.data.histories import Grouped
from tests.data.logs import logs


@settings(max_examples=40)
@given(logs(), st.sampled_from(["users", "items"]), st.data())
def test_the_interactions_of_an_id_lie_side_by_side_in_the_order_of_the_log(log, side, data):
    part = log[: data.draw(st.integers(0, len(log)))]  # so that some ids have no interactions
    own, other = (part.user, part.item) if side == "users" else (part.item, part.user)
    size = part.num_users if side == "users" else part.num_items
    group = Grouped(part, side)
    assert len(group.counts) == len(group.starts) - 1 == size
    for j in range(size):
        places = [n for n in range(len(part)) if own[n] == j]
        its = slice(group.starts[j], group.starts[j + 1])
        assert group.counts[j] == len(places)
        assert group.order[its].tolist() == places
        assert group.partners[its].tolist() == other[places].tolist()


@pytest.mark.parametrize(("side", "ids"), [("users", 2), ("items", 3)])
def test_an_empty_log_has_ids_without_interactions(side, ids):
    log = read({"user": [1, 1, 2], "item": [1, 2, 3], "rating": [1.0, 2.0, 3.0]})[:0]
    group = Grouped(log, side)
    assert group.counts.tolist() == [0] * ids
    assert group.starts.tolist() == [0] * (ids + 1)
    assert len(group.order) == len(group.partners) == 0


def test_a_pair_that_repeats_is_there_each_time():
    log = read({"user": [1, 2, 1, 1], "item": [7, 7, 8, 7], "rating": [1.0, 2.0, 3.0, 4.0]})
    group = Grouped(log, "items")
    assert group.partners.tolist() == [0, 1, 0, 0]
    assert log.target[group.order].tolist() == [1, 2, 4, 3]
    assert {group.counts.dtype, group.starts.dtype, group.order.dtype} == {np.dtype(np.int64)}
