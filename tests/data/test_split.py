from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, Split, read


def numbered(rows):
    """A log whose items tell the rows apart and whose moments repeat."""
    return read(
        {
            "user": [0] * rows,
            "item": list(range(rows)),
            "rating": [1.0] * rows,
            "time": [n * 7 % 11 for n in range(rows)],
        }
    )


def rows_of(part):
    return part.item.tolist()


shares = st.floats(0, 0.9)
seeds = st.integers(0, 2**32)


@given(st.integers(1, 80), shares, shares, seeds)
def test_a_random_split_is_a_partition_in_the_order_of_the_log(rows, test, valid, seed):
    split = Split.random(numbered(rows), test=test, valid=valid, seed=seed)
    parts = [rows_of(part) for part in (split.train, split.valid, split.test)]
    assert sorted(chain.from_iterable(parts)) == list(range(rows))
    assert all(part == sorted(part) for part in parts)
    assert len(split.test) == round(rows * test)
    assert len(split.valid) == round((rows - len(split.test)) * valid)


@given(st.integers(2, 80), st.integers(2, 7), seeds)
def test_every_row_is_tested_in_exactly_one_fold(rows, of, seed):
    of = min(of, rows)
    splits = list(Split.folds(numbered(rows), of, seed=seed))
    assert sorted(chain.from_iterable(rows_of(s.test) for s in splits)) == list(range(rows))
    sizes = [len(split.test) for split in splits]
    assert max(sizes) - min(sizes) <= 1
    for split in splits:
        everything = rows_of(split.train) + rows_of(split.valid) + rows_of(split.test)
        assert sorted(everything) == list(range(rows))


@given(st.integers(1, 80), shares, shares)
def test_nothing_in_an_earlier_part_is_later_than_the_next(rows, test, valid):
    split = Split.chronological(numbered(rows), test=test, valid=valid)
    parts = [part for part in (split.train, split.valid, split.test) if len(part)]
    for before, after in pairwise(parts):
        # Equal moments are cut in the order of the log.
        assert (before.timestamp[-1], before.item[-1]) < (after.timestamp[0], after.item[0])
    assert sum(len(part) for part in parts) == rows


def test_the_test_rows_do_not_depend_on_the_validation_part():
    log = numbered(1000)
    with_valid = Split.fold(log, 2, valid=0.3, seed=5)
    without = Split.fold(log, 2, valid=0.0, seed=5)
    assert rows_of(with_valid.test) == rows_of(without.test)
    assert len(without.valid) == 0


def test_seeds_reproduce_and_differ():
    log = numbered(500)
    one, same, other = (Split.random(log, seed=seed) for seed in (3, 3, 4))
    assert rows_of(one.test) == rows_of(same.test)
    assert rows_of(one.valid) == rows_of(same.valid)
    assert rows_of(one.test) != rows_of(other.test)
    assert rows_of(one.valid) != rows_of(other.valid)


def test_the_rows_of_a_fold_are_known():
    # Published results name folds by number and seed: they must never change.
    assert rows_of(Split.fold(numbered(20), 1, of=5, seed=0).test) == [0, 4, 16, 17]
    assert rows_of(Split.fold(numbered(20), 1, of=5, seed=0).valid) == [11, 19]


def test_parts_share_ids_and_features_with_the_log():
    log = numbered(50)
    split = Split.random(log)
    assert split.test.item_ids is log.item_ids
    assert split.test.num_items == log.num_items


def test_wrong_arguments_are_named():
    log = numbered(10)
    with pytest.raises(CelrecError, match="test must be a share"):
        Split.random(log, test=1.0)
    with pytest.raises(CelrecError, match="valid must be a share"):
        Split.chronological(log, valid=-0.1)
    with pytest.raises(CelrecError, match=r"fold must lie in 1 … 5, not 6"):
        Split.fold(log, 6)
    with pytest.raises(CelrecError, match=r"folds must lie in 2 … 10"):
        Split.fold(log, 1, of=11)
    with pytest.raises(CelrecError, match="needs timestamps"):
        Split.chronological(read({"user": [1], "item": [1], "rating": [1.0]}))


def test_shares_of_real_size_are_unbiased():
    split = Split.random(numbered(10_000), test=0.5, valid=0.0)
    assert abs(np.mean(split.test.item) - 4999.5) < 150


@given(st.integers(2, 60), seeds)
def test_what_may_be_learned_from_is_all_but_the_test_part(rows, seed):
    split = Split.random(numbered(rows), valid=0.3, seed=seed)
    both = split.train_and_valid()
    assert rows_of(both) == rows_of(split.train) + rows_of(split.valid)
    assert both.timestamp.tolist() == [n * 7 % 11 for n in rows_of(both)]


def test_a_split_can_be_named():
    log = numbered(40)
    for name, split in (
        (None, Split.random(log, seed=3)),
        ("time", Split.chronological(log)),
        ("2/5", Split.fold(log, 2, of=5, seed=3)),
    ):
        named = Split.named(log, name, 3)
        for part in ("train", "valid", "test"):
            assert getattr(named, part).item.tolist() == getattr(split, part).item.tolist()


@pytest.mark.parametrize("name", ["", "2", "a/b", "1/5/", "-1/5"])
def test_a_name_that_cannot_be_read_is_reported(name):
    with pytest.raises(CelrecError, match="fold must look like 1/5"):
        Split.named(numbered(10), name)
