from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given

from celrec import Description, read
from tests.data.logs import logs


@given(logs())
def test_agrees_with_counting_by_hand(log):
    about = Description.of(log)
    frame = log.to_frame()
    users, items = Counter(frame["user"].to_list()), Counter(frame["item"].to_list())
    pairs = Counter(frame.select("user", "item").rows())
    assert (about.rows, about.users, about.items) == (len(frame), len(users), len(items))
    assert about.repeated_pairs == sum(n - 1 for n in pairs.values())
    assert about.density == pytest.approx(len(pairs) / (len(users) * len(items)))
    assert about.cold_users == {k: sum(n <= k for n in users.values()) for k in (2, 5, 20)}
    assert about.cold_items == {k: sum(n <= k for n in items.values()) for k in (2, 5, 20)}
    assert {low: n for low, _, n in about.histogram} == Counter(frame["target"].to_list())
    assert sum(n for _, _, n in about.histogram) == len(frame)
    most = max(items.values())
    assert about.popularity[0.01] == pytest.approx(most / len(frame))
    assert list(about.popularity.values()) == sorted(about.popularity.values())


def test_many_different_targets_are_counted_in_intervals():
    log = read({"user": [1] * 100, "item": list(range(100)), "rating": [n / 9 for n in range(100)]})
    histogram = Description.of(log).histogram
    assert len(histogram) == 10
    assert sum(rows for _, _, rows in histogram) == 100
    assert all(high == low for (_, high, _), (low, _, _) in pairwise(histogram))


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_the_unit_of_time_is_seen_from_its_size(unit):
    log = read({"user": [1], "item": [1], "rating": [1.0], "time": [978300760 * unit]})
    assert Description.of(log).first == "2000-12-31T22:12:40+00:00"


def test_a_log_of_one_row():
    about = Description.of(read({"user": [1], "item": [1], "rating": [4.0]}))
    assert (about.density, about.target_std, about.first) == (1.0, 0.0, None)
    assert set(about.popularity.values()) == {1.0}
