import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, read
from celrec.data.seen_items import SeenItems
from celrec.evaluation.metrics import COLD_LIMIT
from celrec.evaluation.ranking import Ranking

USERS, ITEMS = 5, 8
KNOWN = read({"user": range(ITEMS), "item": range(ITEMS), "rating": [1.0] * ITEMS})


def log_of(rows):
    """Rows of (user, item, target), −1 for ids that are not known."""
    columns = np.array(rows, float).reshape(-1, 3).T
    return replace(KNOWN, user=columns[0], item=columns[1], target=columns[2])


def slow_ranking(lists, users, rows, counts, relevant_from, seen, part):
    """One user after the other."""

    def counts_here(item):
        cold = item < 0 or counts[item] <= COLD_LIMIT
        return part == "all" or cold == (part == "cold")

    told = {"ndcg": [], "recall": [], "mrr": [], "hit_rate": []}
    for user, answer in zip(users, lists, strict=True):
        liked, unknown = set(), 0
        for who, item, target in rows:
            wanted = relevant_from is None or target >= relevant_from
            if who != user or who < 0 or not wanted or (user, item) in seen:
                continue
            if item < 0:
                unknown += counts_here(item)
            elif counts_here(item):
                liked.add(item)
        total = len(liked) + unknown
        if not total:
            continue
        places = [place for place, item in enumerate(answer, 1) if item in liked]
        best = sum(1 / math.log2(place + 1) for place in range(1, min(total, len(answer)) + 1))
        told["ndcg"].append(sum(1 / math.log2(place + 1) for place in places) / best)
        told["recall"].append(len(places) / total)
        told["mrr"].append(1 / places[0] if places else 0.0)
        told["hit_rate"].append(float(bool(places)))
    means = {name: sum(each) / len(each) if each else None for name, each in told.items()}
    own = [item for item in range(ITEMS) if counts_here(item)]
    shown = {item for answer in lists for item in answer if item >= 0 and counts_here(item)}
    coverage = len(shown) / len(own) if own else None
    return {"users": len(told["recall"]), **means, "coverage": coverage}


@st.composite
def cases(draw):
    users = draw(st.lists(st.integers(0, USERS), unique=True, max_size=USERS))
    k = draw(st.integers(1, 6))
    answers = st.lists(st.integers(0, ITEMS - 1), unique=True, max_size=k)
    lists = [answer + [-1] * (k - len(answer)) for answer in (draw(answers) for _ in users)]
    row = st.tuples(st.integers(-1, USERS), st.integers(-1, ITEMS - 1), st.sampled_from([1.0, 4.0]))
    rows = draw(st.lists(row, max_size=30))
    pairs = draw(st.lists(st.tuples(st.integers(0, USERS), st.integers(0, ITEMS - 1)), max_size=9))
    counts = draw(st.lists(st.sampled_from([0, 20, 21, 90]), min_size=ITEMS, max_size=ITEMS))
    return np.array(lists, np.int32).reshape(len(users), k), users, rows, pairs, counts


@given(cases(), st.sampled_from([None, 0.5, 2.0, 5.0]), st.booleans())
@settings(max_examples=200)
def test_rankings_are_those_of_one_user_after_the_other(case, relevant_from, filtered):
    lists, users, rows, pairs, counts = case
    seen = SeenItems()
    seen.add([user for user, _ in pairs], [item for _, item in pairs])
    found = Ranking.by_slice(
        lists,
        np.array(users, np.int64),
        log_of(rows),
        np.array(counts),
        relevant_from=relevant_from,
        seen=seen if filtered else None,
    )
    assert list(found) == ["all", "cold", "warm"]
    before = set(pairs) if filtered else set()
    for part, ranking in found.items():
        expected = slow_ranking(lists.tolist(), users, rows, counts, relevant_from, before, part)
        for name, value in expected.items():
            told = getattr(ranking, name)
            assert told is None if value is None else told == pytest.approx(value, abs=1e-12)


def test_a_list_that_holds_all_that_is_liked_in_front_is_perfect():
    rows = [(0, 3, 5.0), (0, 1, 5.0), (2, 4, 5.0), (2, 3, 1.0)]
    lists = np.array([[1, 3, 5], [4, 7, 6]])
    counts = np.arange(ITEMS) * 10
    all_of_them = Ranking.by_slice(lists, [0, 2], log_of(rows), counts, relevant_from=4.0)["all"]
    assert all_of_them == Ranking(2, 1.0, 1.0, 1.0, 1.0, 6 / 8)


def test_mistakes_are_told():
    test = log_of([(0, 1, 1.0)])
    with pytest.raises(CelrecError, match="a row for each of 2 users"):
        Ranking.by_slice(np.zeros((1, 3), int), [0, 1], test, np.zeros(ITEMS, int))
    with pytest.raises(CelrecError, match="some twice"):
        Ranking.by_slice(np.zeros((2, 3), int), [1, 1], test, np.zeros(ITEMS, int))
