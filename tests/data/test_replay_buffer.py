import copy
import re
import tracemalloc
from collections import Counter, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.data.replay_buffer import ReplayBuffer
from celrec.errors import CelrecError
from celrec.runtime.memory_budget import MemoryBudget

COLUMNS = {
    "partner": np.int32,
    "target": np.float32,
    "place": (np.float16, 3),
    "stamp": np.int64,
    "mark": np.uint8,
    "pair": (np.uint32, 2),
}
EVENT_BYTES = 4 + 4 + 6 + 8 + 1 + 8
PAIR = {"partner": np.int32, "target": np.float32}


def values_of(event):
    """The values of the event with this number, unlike those of any other."""
    return {
        "partner": event,
        "target": event / 4,
        "place": [event % 1000, -0.5, event % 7],
        "stamp": -event * 2**40,
        "mark": event % 256,
        "pair": [event, 2**32 - 1 - event],
    }


class SlowBuffer:
    """The obvious buffer: a deque for each id."""

    def __init__(self, width):
        self.width = width
        self.kept = defaultdict(lambda: deque(maxlen=width))
        self.counts = Counter()
        self.num_ids = 0

    def insert(self, ids, events):
        for owner, event in zip(ids, events, strict=True):
            self.kept[owner].append(event)
            self.counts[owner] += 1
            self.num_ids = max(self.num_ids, owner + 1)

    def events(self, ids):
        return [(row, event) for row, owner in enumerate(ids) for event in self.kept[owner]]

    def keep(self, ids):
        known = [owner for owner in ids if owner < self.num_ids]
        self.kept, kept = defaultdict(lambda: deque(maxlen=self.width)), self.kept
        self.counts, counts = Counter(), self.counts
        for number, owner in enumerate(known):
            self.kept[number], self.counts[number] = kept[owner], counts[owner]
        self.num_ids = len(known)


def insert(buffer, ids, events):
    values = [values_of(event) for event in events]
    buffer.insert(
        np.array(ids, np.int64),
        **{
            name: np.array([value[name] for value in values], declared[0]).reshape(-1, declared[1])
            if isinstance(declared, tuple)
            else np.array([value[name] for value in values], declared)
            for name, declared in COLUMNS.items()
        },
    )


def assert_same(buffer, slow, ids):
    expected = slow.events(ids)
    owner, columns = buffer.events(ids)
    assert owner.dtype == np.int64
    assert owner.tolist() == [row for row, _ in expected]
    for name in COLUMNS:
        assert columns[name].tolist() == [values_of(event)[name] for _, event in expected]
    assert buffer.kept(ids).tolist() == [len(slow.kept[owner]) for owner in ids]
    assert buffer.num_ids == slow.num_ids
    assert buffer.counts.tolist() == [slow.counts[owner] for owner in range(slow.num_ids)]


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    assert one["columns"].keys() == other["columns"].keys()
    assert one["width"] == other["width"]
    assert torch.equal(one["counts"], other["counts"])
    for name, values in one["columns"].items():
        assert values.dtype == other["columns"][name].dtype
        assert torch.equal(values, other["columns"][name])


few, many = st.integers(0, 5), st.integers(0, 200)
steps = st.lists(
    st.tuples(st.just("insert"), st.lists(few, max_size=70) | st.lists(many, max_size=9))
    | st.tuples(st.just("keep"), st.sets(few | many).map(sorted))
    | st.tuples(st.just("ask"), st.lists(few | many | st.integers(-3, 300), max_size=12))
    | st.tuples(st.just("restore"), st.lists(few | many, max_size=30))
    | st.tuples(st.just("look"), st.just([])),
    max_size=12,
)


def run(width, steps, budget=None):
    """Take the steps beside the obvious buffer, and give the state at the end."""
    buffer, slow = ReplayBuffer(width, COLUMNS, budget=budget), SlowBuffer(width)
    inserted, views = 0, []
    for step, ids in steps:
        if step == "insert":
            events = range(inserted, inserted + len(ids))
            insert(buffer, ids, events)
            slow.insert(ids, events)
            inserted += len(ids)
        elif step == "keep":
            buffer.keep(ids)
            slow.keep(ids)
            event_bytes = 8 + width * EVENT_BYTES
            assert buffer.nbytes == slow.num_ids * event_bytes
        elif step == "look":  # a view that somebody holds must not be harmed by growth
            views.append((buffer.counts, buffer.state_dict()))
        elif step == "restore":  # into a buffer that already holds something else
            state = copy.deepcopy(buffer.state_dict())
            buffer = ReplayBuffer(width, COLUMNS, ids=3, budget=budget)
            insert(buffer, ids, range(len(ids)))
            buffer.load_state_dict(state)
            assert_same_state(buffer.state_dict(), state)
        assert_same(buffer, slow, ids)
    assert_same(buffer, slow, [*range(-1, slow.num_ids + 2), 0, 0])
    for counts, state in views:
        assert counts.min(initial=0) >= 0
        assert len(counts) == len(state["counts"])
    return copy.deepcopy(buffer.state_dict())


@settings(max_examples=60)
@given(st.sampled_from([0, 1, 3, 20]), steps)
def test_agrees_with_the_obvious_buffer_in_memory_and_in_files(width, steps):
    in_memory = run(width, steps)
    assert_same_state(run(width, steps, MemoryBudget(budget=0)), in_memory)
    assert_same_state(run(width, steps, MemoryBudget(budget=20_000)), in_memory)


@given(st.sampled_from([1, 3, 20]), st.lists(st.lists(few, max_size=50), max_size=6))
def test_it_matters_not_how_events_are_cut_into_batches(width, batches):
    ids = [owner for batch in batches for owner in batch]
    at_once, in_parts = ReplayBuffer(width, COLUMNS), ReplayBuffer(width, COLUMNS)
    insert(at_once, ids, range(len(ids)))
    start = 0
    for batch in batches:
        insert(in_parts, batch, range(start, start + len(batch)))
        start += len(batch)
    assert_same_state(in_parts.state_dict(), at_once.state_dict())


def test_accepts_lists_other_dtypes_strides_tensors_and_read_only_arrays():
    partners = np.arange(8, dtype=np.int64)[::2]
    targets = np.array([0.1, 1, 2, 3])
    targets.flags.writeable = False
    buffer = ReplayBuffer(4, {"partner": np.uint16, "target": ">f4", "click": np.int8})
    for ids in ([0, 1, 0, 0], torch.tensor([0, 1, 0, 0]), np.array([0, 1, 0, 0], np.uint64)):
        click = [True, False, True, True]
        buffer.insert(ids, partner=partners, target=targets, click=click)
        columns = buffer.events(np.array([0], np.int8)).columns
        assert columns["partner"].tolist()[-3:] == [0, 4, 6]
        assert columns["target"].tolist()[-3:] == [np.float32(0.1), 2, 3]
        assert columns["click"].tolist()[-3:] == [1, 1, 1]
    assert columns["target"].dtype == np.float32
    buffer.insert([], partner=[], target=[], click=[])
    assert buffer.counts.tolist() == [9, 3]
    assert [values.shape for values in buffer.events([]).columns.values()] == [(0,)] * 3


def test_without_columns_it_counts():
    buffer = ReplayBuffer(0, {}, ids=2)
    buffer.insert([4, 4, 0])
    assert buffer.counts.tolist() == [1, 0, 0, 0, 2]
    assert buffer.kept([4, 9]).tolist() == [0, 0]
    assert buffer.events([4]).columns == {}


def test_what_events_gives_is_not_touched_by_later_events():
    buffer = ReplayBuffer(1, PAIR)
    buffer.insert([0], partner=[1], target=[1.0])
    owner, columns = buffer.events([0])
    buffer.insert([0], partner=[2], target=[2.0])
    assert (owner.tolist(), columns["partner"].tolist()) == ([0], [1])


def test_counts_cannot_be_written():
    buffer = ReplayBuffer(1, PAIR, ids=2)
    with pytest.raises(ValueError, match="read-only"):
        buffer.counts[0] = 1


@pytest.mark.parametrize(
    ("ids", "columns", "message"),
    [
        ([0, -7], {}, "ids must lie in 0 … 2**63 - 1, got -7"),
        (np.array([0, 2**64 - 1], np.uint64), {}, "got 18446744073709551615"),
        ([0.0, 1.0], {}, "ids must be a flat array of integers, not float64 of shape (2,)"),
        ([[0], [1]], {}, "not int64 of shape (2, 1)"),
        ([[0], [1, 2]], {}, "ids: not an array"),
        ([0, 2**60], {}, "ids: not enough memory for 1,152,921,504,606,846,977 of them"),
        ([0, 1, 2], {}, "partner has shape (2,) where (3,) is expected"),
        ([0, 50], {"target": [1.0]}, "target has shape (1,) where (2,) is expected"),
        ([0, 50], {"place": [1.0, 2.0]}, "place has shape (2,) where (2, 2) is expected"),
        ([0, 50], {"other": [1.0, 2.0]}, "got partner, target, place, other; pass exactly"),
        ([0, 50], {"partner": None}, "columns must be partner, target, place, got target, place"),
        ([0, 50], {"partner": [1, 2**31]}, "partner: 2147483648 does not fit in int32"),
        ([0, 50], {"partner": [1.0, 2.0]}, "partner is float64 where int32 is expected"),
        ([0, 50], {"target": [1.0, 1e39]}, "target: 1e+39 does not fit in float32"),
        ([0, 50], {"target": torch.ones(2, requires_grad=True)}, "target: not an array"),
        ([0, 50], {"target": ["a", "b"]}, "where float32 is expected"),
        ([0, 50], {"target": [object(), 1]}, "target is object where float32 is expected"),
    ],
)
def test_an_insertion_that_fails_changes_nothing(ids, columns, message):
    buffer = ReplayBuffer(2, {**PAIR, "place": (np.float64, 2)}, ids=2)
    good = {"partner": [1, 2], "target": [0.5, np.inf], "place": np.ones((2, 2))}
    buffer.insert([0, 1], **good)
    before, nbytes = copy.deepcopy(buffer.state_dict()), buffer.nbytes
    given = {name: values for name, values in {**good, **columns}.items() if values is not None}
    with pytest.raises(CelrecError, match=re.escape(message)):
        buffer.insert(ids, **given)
    assert_same_state(buffer.state_dict(), before)
    assert (buffer.num_ids, buffer.nbytes) == (2, nbytes)
    buffer.insert([2, 0], **good)
    assert buffer.events([2, 0]).columns["partner"].tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, PAIR), "width must be an integer, 0 or more, got -1"),
        ((2.5, PAIR), "width must be an integer, 0 or more, got 2.5"),
        ((2, PAIR, -3), "ids must be an integer, 0 or more, got -3"),
        ((2, {"a": "complex64"}), "columns: a is declared 'complex64'"),
        ((2, {"a": np.longdouble}), "columns: a is declared"),
        ((2, {"a": (np.int32, 0)}), "columns: a is declared"),
        ((2, {"a": (np.int32, (2, 3))}), "columns: a is declared"),
        ((2, {"a": ()}), "columns: a is declared ()"),
        ((2, {"a": "nonsense"}), "columns: a is declared 'nonsense'"),
        ((2, {"../a": np.int32}), "columns: '../a' cannot be a column"),
        ((2, {"ids": np.int32}), "columns: 'ids' cannot be a column"),
        ((2, PAIR, 2**60), "ids: not enough memory for"),
    ],
)
def test_a_declaration_that_cannot_be_is_explained(arguments, message):
    width, columns, *ids = arguments
    with pytest.raises(CelrecError, match=re.escape(message)):
        ReplayBuffer(width, columns, ids=ids[0] if ids else 0)


def test_grows_by_an_eighth_or_as_far_as_needed_and_tells_its_bytes():
    for budget in (None, MemoryBudget(budget=0)):
        buffer = ReplayBuffer(5, COLUMNS, ids=80, budget=budget)
        for owner, capacity in [(79, 80), (80, 90), (89, 90), (500, 501), (20, 501)]:
            insert(buffer, [owner], [owner])
            assert buffer.nbytes == capacity * (8 + 5 * EVENT_BYTES)
        assert buffer.num_ids == 501
        assert buffer.events([80, 500]).columns["partner"].tolist() == [80, 500]
    assert budget.mapped_bytes == buffer.nbytes


def test_growth_in_memory_never_holds_the_events_twice():
    tracemalloc.start()
    try:
        buffer = ReplayBuffer(16, {"stamp": np.int64}, ids=1)
        buffer.insert([50_000], stamp=[1])
        buffer.insert([56_000], stamp=[2])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer.nbytes > 56_000 * 17 * 8
    assert peak < 1.2 * buffer.nbytes


def test_a_view_that_is_held_keeps_what_it_showed_when_the_buffer_grows():
    buffer = ReplayBuffer(2, PAIR)
    buffer.insert([0, 0, 1], partner=[1, 2, 3], target=[1.0, 2.0, 3.0])
    counts, state = buffer.counts, buffer.state_dict()
    buffer.insert([0, 100_000], partner=[8, 9], target=[8.0, 9.0])
    assert counts.tolist() == [2, 1]
    assert state["columns"]["partner"].tolist() == [[1, 2], [3, 0]]
    assert buffer.counts[[0, 1, 100_000]].tolist() == [3, 1, 1]
    assert buffer.events([0, 1, 100_000]).columns["partner"].tolist() == [2, 8, 3, 9]


def test_a_state_shares_memory():
    buffer = ReplayBuffer(2, PAIR, ids=2)
    state = buffer.state_dict()
    buffer.insert([0, 1], partner=[7, 8], target=[1.0, 2.0])
    assert state["columns"]["partner"].tolist() == [[7, 0], [8, 0]]


# Dropping ids.


def test_to_keep_some_gives_the_room_of_the_others_back():
    tracemalloc.start()
    try:
        for budget in (None, MemoryBudget(budget=0)):
            buffer = ReplayBuffer(16, {"stamp": np.int64}, budget=budget)
            ids = np.arange(200_000)
            buffer.insert(ids, stamp=ids)
            before, (held, _) = buffer.nbytes, tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            buffer.keep(ids[7::10])
            after, peak = tracemalloc.get_traced_memory()
            assert buffer.nbytes == before // 10
            assert buffer.events([0, 19_999]).columns["stamp"].tolist() == [7, 199_997]
            assert buffer.counts.tolist() == [1] * 20_000
            if budget is None:  # nor are they held twice on the way
                assert after < held - 0.8 * before
                assert peak < held + 0.4 * before
    finally:
        tracemalloc.stop()
    assert budget.mapped_bytes == buffer.nbytes


def test_an_id_that_was_dropped_comes_again_with_nothing():
    for budget in (None, MemoryBudget(budget=0)):
        buffer = ReplayBuffer(2, PAIR, budget=budget)
        buffer.insert([0, 1, 1, 1], partner=[5, 6, 7, 8], target=[1.0, 2.0, 3.0, 4.0])
        views = buffer.counts, buffer.state_dict()
        buffer.keep([1])
        assert buffer.events([0, 1]).columns["partner"].tolist() == [7, 8]
        buffer.insert([1], partner=[9], target=[9.0])
        assert buffer.events([1, 0]).columns["partner"].tolist() == [9, 7, 8]
        assert buffer.counts.tolist() == [3, 1]
        buffer.keep([])
        assert (buffer.num_ids, buffer.nbytes) == (0, 0)
        assert len(views[0]) == 2  # who holds a view can still read it
        assert views[1]["columns"]["partner"].sum() >= 0
        buffer.insert([0], partner=[3], target=[0.5])
        assert buffer.events([0, 1]).columns["target"].tolist() == [0.5]


@pytest.mark.parametrize("ids", [[1, 0], [0, 0], [-1, 0]])
def test_ids_to_keep_must_ascend(ids):
    buffer = ReplayBuffer(1, PAIR, ids=3)
    with pytest.raises(CelrecError, match="ids to keep must be 0 or more and ascend"):
        buffer.keep(ids)
    assert buffer.num_ids == 3


@given(st.lists(st.tuples(few, few, st.integers(-1, 5)), max_size=30), st.data())
def test_what_a_column_refers_to_can_be_renumbered(events, data):
    numbers = np.array([data.draw(st.integers(-1, 5)) for _ in range(6)])
    for budget in (None, MemoryBudget(budget=0)):
        buffer = ReplayBuffer(3, {"one": np.int32, "two": (np.int32, 2)}, budget=budget)
        ids, one, other = (list(part) for part in zip(*events, strict=True)) if events else [[]] * 3
        pairs = np.array([one, other], np.int32).T.reshape(-1, 2)
        buffer.insert(ids, one=other, two=pairs)
        before = buffer.events(range(6)).columns
        buffer.renumber("one", numbers)
        buffer.renumber("two", numbers, 1)
        after = buffer.events(range(6)).columns
        new = [int(numbers[v]) if v >= 0 else v for v in before["one"].tolist()]
        assert after["one"].tolist() == new
        assert after["two"][:, 0].tolist() == before["two"][:, 0].tolist()
        assert after["two"][:, 1].tolist() == new


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 3}, "state: width 3, columns partner, target where width 2"),
        ({"columns": {}}, "state: width 2, columns none where"),
        ({"columns": None}, "state must have width, counts and columns"),
        ({"counts": [1, 2]}, "state.counts is a list"),
        ({"counts": torch.tensor(3)}, "state.counts is torch.int64 of shape ()"),
        ({"counts": torch.tensor([1, -2])}, "state.counts has -2"),
        ({"counts": torch.tensor([1, 2], dtype=torch.int32)}, "state.counts is torch.int32"),
        ({"counts": torch.tensor([1, 2, 3])}, "state.columns.partner is torch.int32 of shape (2,"),
        ({"partner": torch.zeros(2, 2)}, "state.columns.partner is torch.float32"),
        ({"target": torch.zeros(2, 2, 1)}, "state.columns.target is torch.float32 of shape (2, 2,"),
        ({"target": np.zeros((2, 2))}, "state.columns.target is a ndarray"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    buffer = ReplayBuffer(2, PAIR)
    buffer.insert([0, 1, 0], partner=[1, 2, 3], target=[1.0, 2.0, 3.0])
    before = copy.deepcopy(buffer.state_dict())
    state = copy.deepcopy(before)
    for key, value in change.items():
        (state if key in state else state["columns"])[key] = value
    with pytest.raises(CelrecError, match=re.escape(message)):
        buffer.load_state_dict(state)
    assert_same_state(buffer.state_dict(), before)


def test_no_state_at_all_is_refused():
    for state in ({}, None, {"width": 2, "counts": torch.zeros(0, dtype=torch.int64)}):
        with pytest.raises(CelrecError, match="state must have width, counts and columns"):
            ReplayBuffer(2, PAIR).load_state_dict(state)


def test_a_folder_that_cannot_be_written_is_explained(tmp_path):
    file = Path(tmp_path, "file")
    file.touch()
    with pytest.raises(
        CelrecError, match=r"^memory: arrays .* files in .*file.* nothing can be written"
    ):
        ReplayBuffer(2, PAIR, ids=1, budget=MemoryBudget(0, file))
