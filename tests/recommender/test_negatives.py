from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import celrec
from celrec.recommender.negatives import Negatives, with_negatives
from celrec.runs.seen_log import seen_in
from tests.data.logs import logs


def known_to(log, user):
    return {int(i) for u, i in zip(log.user, log.item, strict=True) if u == user}


@pytest.mark.parametrize("seed", range(4))
def test_an_item_of_the_user_is_drawn_only_by_those_who_know_most(seed):
    log = celrec.Planted(rows=600, users=20, items=60, dim=2, seed=seed).interactions()
    users = torch.arange(20).repeat(30)
    drawn = Negatives(log).draw(users, torch.Generator().manual_seed(seed))
    assert drawn.dtype == torch.int64
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < log.num_items
    knowing = [known_to(log, user) for user in range(20)]
    for user, item in zip(users.tolist(), drawn.tolist(), strict=True):
        # Drawn nine times over, that is once in 10,000 for those who know a third.
        assert item not in knowing[user] or len(knowing[user]) > 20
    assert any(len(known) > 15 for known in knowing)


def test_all_other_items_are_drawn_alike():
    log = celrec.read({"user": [0, 0, 1, 1], "item": [0, 1, 2, 3], "rating": [1.0] * 4})
    users = torch.zeros(4000, dtype=torch.int64)
    drawn = Negatives(log).draw(users, torch.Generator().manual_seed(0))
    found = torch.bincount(drawn, minlength=4).tolist()
    assert found[:2] == [0, 0] or sum(found[:2]) < 4000 / 2**8
    assert 1800 < found[2] < 2200


def test_nobody_waits_for_an_item_that_does_not_exist():
    log = celrec.read({"user": [0, 0, 1], "item": [0, 1, 0], "rating": [1.0] * 3})
    drawn = Negatives(log).draw(torch.tensor([0] * 50), torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {0, 1}


@given(st.integers(0, 2**40))
@settings(max_examples=10)
def test_the_generator_alone_decides(seed):
    log = celrec.Planted(rows=100, users=10, items=50, dim=2, item_clusters=3).interactions()
    users = torch.tensor(log.user.astype(np.int64))
    first, second = (
        Negatives(log).draw(users, torch.Generator().manual_seed(s)) for s in (seed, seed)
    )
    assert torch.equal(first, second)
    other = Negatives(log).draw(users, torch.Generator().manual_seed(seed + 1))
    assert not torch.equal(first, other)


def test_unseen_users_get_any_item():
    log = celrec.Planted(rows=100, users=10, items=5, dim=2, item_clusters=3).interactions()
    drawn = Negatives(log).draw(torch.full((200,), -1), torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == set(range(5))
    with_unseen = replace(log, user=np.where(log.item == 2, -1, log.user).astype(np.int32))
    drawn = Negatives(with_unseen).draw(torch.arange(10), torch.Generator().manual_seed(0))
    assert len(drawn) == 10


def test_nothing_can_be_drawn_for_nobody():
    log = celrec.Planted(rows=100, users=10, items=5, dim=2, item_clusters=3).interactions()
    nobody = torch.zeros(0, dtype=torch.int64)
    assert len(Negatives(log).draw(nobody, torch.Generator())) == 0
    assert len(Negatives(log[:0]).beside(log[:0], 0)) == 0
    assert len(Negatives(log[:0]).draw(torch.tensor([3, 4]), torch.Generator())) == 2


@settings(max_examples=30)
@given(logs(min_rows=2), st.integers(0, 9))
def test_beside_every_row_stands_one_with_another_item_and_target_zero(log, seed):
    table = log.to_frame().with_columns(shop=np.arange(len(log)) % 3)
    log = celrec.read(table, columns=["shop"])
    negatives, rows = Negatives(log), len(log)
    both = negatives.beside(log, seed)
    assert len(both) == 2 * rows
    assert both.target.tolist() == [1.0] * rows + [0.0] * rows
    assert both.item[:rows].tolist() == log.item.tolist()
    for part in (slice(rows), slice(rows, None)):
        assert both.user[part].tolist() == log.user.tolist()
        assert both.columns["shop"].values[part].tolist() == log.columns["shop"].values.tolist()
        assert log.timestamp is None or both.timestamp[part].tolist() == log.timestamp.tolist()
    users = torch.tensor(log.user.astype(np.int64))
    drawn = negatives.draw(users, torch.Generator().manual_seed(seed))
    assert both.item[rows:].tolist() == drawn.tolist()
    assert both.item_ids is log.item_ids


def test_several_can_be_drawn_beside_each_row():
    log = celrec.Planted(rows=200, users=10, items=50, dim=2, item_clusters=3).interactions()
    beside = Negatives(log).beside(log, seed=3, count=4)
    assert beside.target.tolist() == [1.0] * 200 + [0.0] * 800
    assert beside.user.tolist() == log.user.tolist() * 5
    assert beside.item[:200].tolist() == log.item.tolist()
    assert beside.timestamp.tolist() == log.timestamp.tolist() * 5
    for user, item in zip(beside.user[200:], beside.item[200:], strict=True):
        assert item not in known_to(log, user)


def test_what_was_seen_is_as_good_as_a_log():
    log = celrec.Planted(rows=300, users=12, items=40, dim=2, item_clusters=3).interactions()
    users = torch.tensor([3, 5, 3, 7] * 50)
    by_seen = Negatives.of_seen(seen_in(log), users.numpy(), log.num_items)
    drawn = [one.draw(users, torch.Generator().manual_seed(4)) for one in (by_seen, Negatives(log))]
    assert torch.equal(*drawn)


def test_no_part_of_a_split_is_drawn_for_another():
    log = celrec.Planted(rows=150, users=10, items=80, dim=2, item_clusters=3).interactions()
    split = celrec.Split.random(log, test=0, valid=0.3)
    both = with_negatives(split, 3, seed=1)
    for part, plain in ((both.train, split.train), (both.valid, split.valid)):
        assert len(part) == 4 * len(plain)
        for user, item in zip(part.user[len(plain) :], part.item[len(plain) :], strict=True):
            assert item not in known_to(log, user)
    assert len(both.test) == 0
