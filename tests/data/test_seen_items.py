from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.data import seen_items
from celrec.data.seen_items import SeenItems


class SlowSeen:
    """The same with lists."""

    def __init__(self, latest=None):
        self.latest, self.pairs = latest, []

    def add(self, users, items):
        pairs = zip(users, items, strict=True)
        self.pairs += [pair for pair in pairs if min(pair) >= 0]
        counted, kept = {}, []
        for user, item in reversed(self.pairs):
            counted[user] = counted.get(user, 0) + 1
            if self.latest is None or counted[user] <= self.latest:
                kept.append((user, item))
        self.pairs = kept[::-1]

    def of(self, user):
        return [item for who, item in reversed(self.pairs) if who == user]

    def keep(self, users, items):
        for place, kept in enumerate((users, items)):
            if kept is None:
                continue
            number = {old: new for new, old in enumerate(kept)}
            self.pairs = [
                (*pair[:place], number[pair[place]], *pair[place + 1 :])
                for pair in self.pairs
                if pair[place] in number
            ]


Numbers = st.integers(-1, 8)
Pairs = st.lists(st.tuples(Numbers, Numbers), max_size=40)
SavedEstimator = st.none() | st.sets(st.integers(0, 8)).map(sorted)
Steps = st.lists(Pairs | st.tuples(SavedEstimator, SavedEstimator, st.just("keep")), max_size=6)


def assert_same(seen, slow):
    users, items = seen.events()
    assert list(zip(users.tolist(), items.tolist(), strict=True)) == slow.pairs
    asked = [3, -1, 0, 3, 100, *range(9)]
    starts, found = seen.of(asked)
    parts = [found[begin:end].tolist() for begin, end in pairwise(starts)]
    assert parts == [slow.of(user) for user in asked]
    last = [-1] * 9
    for number, (_, item) in enumerate(slow.pairs):
        last[item] = number
    assert seen.recency(9).tolist() == last


@given(Steps, st.none() | st.integers(1, 4), st.integers(1, 30))
def test_what_was_seen_is_what_lists_say(steps, latest, least):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen_items, "COMPACT_FROM", least)  # so that it tidies up now and then
        seen, slow = SeenItems(latest), SlowSeen(latest)
        for step in steps:
            if step and step[-1] == "keep":
                kept = [None if ids is None else np.array(ids, np.int64) for ids in step[:2]]
                seen.keep(*kept)
                slow.keep(*step[:2])
            else:
                users, items = ([pair[n] for pair in step] for n in (0, 1))
                seen.add(np.array(users, np.int32), np.array(items, np.int64))
                slow.add(users, items)
            assert_same(seen, slow)


def test_memory_is_bounded_where_only_the_latest_count():
    seen, most = SeenItems(latest=10), 0
    rng = np.random.default_rng(0)
    for _ in range(40):
        seen.add(rng.integers(0, 500, 10_000), rng.integers(0, 1000, 10_000))
        most = max(most, seen.nbytes)
    assert len(seen.events()[0]) == 5_000
    assert most < 12 * 1.3 * (2 * seen_items.COMPACT_FROM)
    all_of_them = SeenItems()
    all_of_them.add(rng.integers(0, 500, 400_000), rng.integers(0, 1000, 400_000))
    assert 12 <= all_of_them.nbytes / 400_000 < 14


def test_mistakes_are_reported():
    seen = SeenItems()
    for wrong, message in (
        (lambda: SeenItems(0), "latest must be positive, not 0"),
        (lambda: seen.add([1], [1, 2]), "items: 2 for 1 users; pass pairs"),
        (lambda: seen.add([1.5], [1]), "users must be a flat array of integers, not float64"),
        (lambda: seen.of([[1]]), r"users must be a flat array of integers, not int64 of shape"),
    ):
        with pytest.raises(CelrecError, match=message):
            wrong()
    assert len(seen) == 0


@given(
    before=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60),
    after=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=200),
    latest=st.none() | st.integers(1, 5),
)
def test_what_is_frozen_stays_as_it_was_whatever_is_added_or_dropped(before, after, latest):
    seen = SeenItems(latest)
    seen.add([user for user, _ in before], [item for _, item in before])
    expected = [part.tolist() for part in (*seen.of(range(12)), *seen.events())]
    frozen = seen.frozen()
    for start in range(0, len(after), 7):
        part = after[start : start + 7]
        seen.add([user for user, _ in part], [item for _, item in part])
    assert [part.tolist() for part in (*frozen.of(range(12)), *frozen.events())] == expected
    seen.keep(np.array([1, 0]), None)
    assert [part.tolist() for part in (*frozen.of(range(12)), *frozen.events())] == expected
    frozen.add([0], [99])
    assert 99 not in seen.of([0, 1])[1]
