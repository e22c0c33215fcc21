import os
import resource
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec.errors import CelrecError
from celrec.runtime.memory_budget import GrowingRows, MemoryBudget, ScratchFile

INT32 = np.dtype(np.int32)
arrays = st.integers(0, 2)
steps = st.lists(
    st.tuples(st.just("grow"), arrays, st.integers(0, 40))
    | st.tuples(st.just("write"), arrays, st.integers(0, 40))
    | st.tuples(st.just("keep"), arrays, st.sets(st.integers(0, 40)))
    | st.tuples(st.just("look"), arrays, st.just(0)),
    max_size=25,
)


@contextmanager
def files_no_longer_than(limit):
    """A disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@given(steps, st.sampled_from([None, 0, 100, 300, 10**6]))
def test_rows_are_those_of_lists_and_within_the_budget(steps, limit):
    budget = MemoryBudget(limit)
    shapes = [(), (2,), (3,)]
    rows = [GrowingRows(INT32, shape, 1, budget) for shape in shapes]
    lists, views = [[0], [0], [0]], []
    for number, (step, which, value) in enumerate(steps):
        one, slow = rows[which], lists[which]
        if step == "grow":
            one.grow(value)
            slow += [0] * (value - len(slow))
        elif step == "write" and value < len(slow):
            one.first(len(slow))[value] = slow[value] = number
        elif step == "keep":
            kept = sorted(place for place in value if place < len(slow))
            one.keep(np.array(kept, np.int64))
            lists[which] = slow = [slow[place] for place in kept]
        elif step == "look":  # a view stays readable
            views.append(one.first(len(slow)))
        expected = np.zeros((len(slow), *shapes[which]), np.int32)
        expected[:] = np.reshape(slow, (-1, *[1] * len(shapes[which])))
        assert np.array_equal(one.first(len(slow)), expected)
        assert one.words.ctypes.data == one.flat.ctypes.data
        assert budget.memory_bytes + budget.mapped_bytes == sum(one.nbytes for one in rows)
        assert limit is None or budget.memory_bytes <= limit
        assert limit not in (None, 10**6) or not budget.mapped_bytes
        assert all(view.sum() >= 0 for view in views)


def test_an_array_moves_to_a_file_when_it_grows_beyond_the_budget_and_stays_there():
    budget = MemoryBudget(budget=1000)
    first, second = GrowingRows(INT32, budget=budget), GrowingRows(INT32, budget=budget)
    first.grow(100)
    second.grow(150)
    assert (budget.memory_bytes, budget.mapped_bytes, first.mapped, second.mapped) == (
        1000,
        0,
        False,
        False,
    )
    second.flat[:] = 7
    second.grow(151)
    assert (budget.memory_bytes, budget.mapped_bytes, first.mapped, second.mapped) == (
        400,
        604,
        False,
        True,
    )
    assert second.flat[:150].tolist() == [7] * 150
    first.grow(250)  # there is memory for it again
    assert (budget.memory_bytes, budget.mapped_bytes) == (1000, 604)
    second.grow(152)
    del first
    assert (budget.memory_bytes, budget.mapped_bytes) == (0, 608)


def test_growth_in_a_file_copies_nothing():
    file = ScratchFile()
    before = file.first(100)
    after = file.first(10**6)
    after[5] = 3
    assert before[5] == 3
    assert not np.shares_memory(before, after[len(before) :])


def test_files_have_no_names_and_are_where_they_should_be(tmp_path):
    folder = tmp_path / "deep" / "run"
    rows = GrowingRows(INT32, (), 10**5, MemoryBudget(0, folder))
    rows.flat[:] = 1
    assert rows.mapped
    assert list(folder.iterdir()) == []
    open_files = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _is(n)]
    assert any(name.startswith(str(folder)) and "deleted" in name for name in open_files)


def _is(handle):
    return os.path.islink(f"/proc/self/fd/{handle}")


def test_what_is_not_used_any_more_is_closed():
    before = len(os.listdir("/proc/self/fd"))
    rows = GrowingRows(INT32, (), 10, MemoryBudget(0))
    for size in range(11, 40):
        rows.grow(size)
        rows.keep(np.arange(size - 1))
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the file, and its map
    del rows
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_reported_and_changes_nothing(tmp_path):
    budget = MemoryBudget(0, tmp_path)
    rows = GrowingRows(INT32, (), 1000, budget)
    rows.flat[:] = 7
    with files_no_longer_than(10_000):
        with pytest.raises(CelrecError, match=r"^memory: arrays .* go to files in .*free space"):
            rows.grow(10**6)
        assert rows.flat.tolist() == rows.words.tolist() == [7] * 1000
        rows.grow(2000)
    rows.grow(10**6)
    assert rows.flat[:1000].tolist() == [7] * 1000
    assert not rows.flat[1000:].any()


def test_an_array_that_cannot_move_to_a_file_stays_in_memory(tmp_path):
    rows = GrowingRows(INT32, (), 1000, MemoryBudget(4000, tmp_path))
    rows.flat[:] = 7
    with (
        files_no_longer_than(1000),
        pytest.raises(CelrecError, match=r"memory: arrays .* files in"),
    ):
        rows.grow(1001)
    assert not rows.mapped
    assert rows.flat.tolist() == [7] * 1000


def test_a_budget_is_no_negative_number():
    with pytest.raises(CelrecError, match="memory must be a number of bytes, 0 or more, not -1"):
        MemoryBudget(-1)
