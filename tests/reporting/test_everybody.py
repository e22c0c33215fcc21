import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import celrec
from celrec.data.seen_items import SeenItems
from celrec.reporting.evaluator import item_means, same_for_all

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=30)


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8), PAIRS, st.integers(1, 10))
def test_everybody_gets_the_best_of_what_is_new_to_them(scores, pairs, k):
    seen = SeenItems()
    seen.add([user for user, _ in pairs], [item for _, item in pairs])
    found = same_for_all(np.array(scores), np.arange(6), k, seen)
    for user in range(6):
        known = {item for who, item in pairs if who == user}
        best = sorted(set(range(8)) - known, key=lambda item: (-scores[item], item))[:k]
        assert found[user].tolist() == best + [-1] * (k - len(best))


def test_many_users_are_served_in_parts():
    seen = SeenItems()
    seen.add(np.arange(500), np.arange(500) % 3)
    found = same_for_all(np.array([3.0, 2.0, 1.0]), np.arange(500), 2, seen)
    assert found[0].tolist() == [1, 2]
    assert found[499].tolist() == [0, 2]


def test_an_item_without_data_has_the_mean_of_all():
    log = celrec.read({"user": [1, 2, 3], "item": [7, 7, 9], "rating": [1.0, 3.0, 5.0]})
    test = celrec.read({"user": [1, 1], "item": [9, 8], "rating": [1.0, 1.0]}, like=log)
    assert item_means(log, test).tolist() == [5.0, 3.0]
    assert item_means(log[:2], test[:1]).tolist() == [2.0]
