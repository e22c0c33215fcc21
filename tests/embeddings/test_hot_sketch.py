import copy
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.cafe import HotSketch
from celrec.embeddings.hashing import hash_ids


class SlowSketch:
    """Four slots in each bucket, one id at a time."""

    def __init__(self, buckets, seed=0):
        self.seed = seed
        self.slots = [[None] * 4 for _ in range(buckets)]

    def gain(self, one, score):
        slots = self.slots[int(hash_ids(torch.tensor(one), self.seed)) % len(self.slots)]
        for place, slot in enumerate(slots):
            if slot is not None and slot[0] == one:
                slots[place] = (one, slot[1] + score)
                return
        place = min(range(4), key=lambda p: -1 if slots[p] is None else slots[p][1])
        if slots[place] is None or score >= slots[place][1]:
            slots[place] = (one, score)
        else:
            lowest, worn = slots[place]
            slots[place] = (lowest, worn - score)

    def scores(self):
        return {slot[0]: slot[1] for slots in self.slots for slot in slots if slot is not None}

    def gain_together(self, batch):
        """The rule for a batch: those already in first, then the four best new ones of a bucket."""
        sums = {}
        for one, score in batch:
            sums[one] = sums.get(one, 0) + score
        known = self.scores()
        new = {}
        for one in sorted(sums):
            if one in known:
                self.gain(one, sums[one])
            else:
                bucket = int(hash_ids(torch.tensor(one), self.seed)) % len(self.slots)
                new.setdefault(bucket, []).append(one)
        for ids in new.values():
            for one in sorted(ids, key=lambda i: sums[i])[-4:]:
                self.gain(one, sums[one])


def held(sketch):
    taken = sketch.ids >= 0
    return dict(zip(sketch.ids[taken].tolist(), sketch.scores[taken].tolist(), strict=True))


def add(sketch, batch):
    ids = torch.tensor([one for one, _ in batch], dtype=torch.int64)
    sketch.add(ids, torch.tensor([float(score) for _, score in batch]))


# Whole scores, so that sums are the same in any order.
gains = st.tuples(st.integers(0, 40), st.integers(1, 20))


@given(st.lists(gains, max_size=60), st.integers(1, 5), st.integers(0, 9))
def test_one_id_at_a_time_it_does_what_a_list_of_slots_does(stream, buckets, seed):
    sketch, slow = HotSketch(buckets, seed=seed), SlowSketch(buckets, seed)
    for one, score in stream:
        add(sketch, [(one, score)])
        slow.gain(one, score)
    assert held(sketch) == slow.scores()


@given(st.lists(st.lists(gains, max_size=40), max_size=5), st.integers(1, 5))
def test_a_batch_is_one_id_after_the_other_in_the_order_that_is_reported(batches, buckets):
    sketch, slow = HotSketch(buckets), SlowSketch(buckets)
    for batch in batches:
        add(sketch, batch)
        slow.gain_together(batch)
    assert held(sketch) == slow.scores()


@given(st.lists(st.lists(gains, max_size=40), max_size=5), st.integers(1, 5))
def test_no_score_is_above_what_the_id_gained(batches, buckets):
    sketch, gained = HotSketch(buckets), Counter()
    for batch in batches:
        add(sketch, batch)
        for one, score in batch:
            gained[one] += score
    assert all(0 < score <= gained[one] for one, score in held(sketch).items())


@given(st.lists(st.lists(gains, max_size=40), min_size=1, max_size=5))
def test_the_order_within_a_batch_does_not_matter(batches):
    first, second = HotSketch(3), HotSketch(3)
    for batch in batches:
        add(first, batch)
        add(second, batch[::-1])
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.scores, second.scores)


@given(st.lists(st.lists(gains, max_size=40), max_size=5))
def test_what_can_be_asked_agrees_with_what_is_held(batches):
    sketch = HotSketch(3)
    for batch in batches:
        add(sketch, batch)
    known = held(sketch)
    ids = torch.arange(-2, 45)
    assert sketch.score(ids).tolist() == [known.get(one, 0) for one in ids.tolist()]
    for count in (0, 1, 5, 100):
        ids, scores = sketch.hottest(count)
        assert scores.tolist() == sorted(known.values(), reverse=True)[:count]
        assert [known[one] for one in ids.tolist()] == scores.tolist()
        assert len(set(ids.tolist())) == len(ids)


@pytest.mark.parametrize("skew", [1.1, 1.5])
@pytest.mark.parametrize("batch", [1000, 10_000])
def test_the_hottest_ids_of_a_skewed_stream_are_found(batch, skew):
    chances = np.arange(1, 10_001) ** -skew
    generator = np.random.default_rng(0)
    names = generator.permutation(10_000)
    stream = names[generator.choice(10_000, 200_000, p=chances / chances.sum())]
    sketch = HotSketch(100)  # four slots for each of the hundred ids that are sought
    for start in range(0, len(stream), batch):
        ids = torch.tensor(stream[start : start + batch])
        sketch.add(ids, torch.ones(len(ids)))
    exact = set(np.bincount(stream).argsort()[-100:].tolist())
    found = set(sketch.hottest(100)[0].tolist())
    assert len(exact & found) >= 90


def test_decay_lets_new_ids_overtake():
    sketch = HotSketch(1)
    add(sketch, [(1, 8)])
    sketch.decay(0.25)
    add(sketch, [(2, 3)])
    assert held(sketch) == {1: 2, 2: 3}


def test_nothing_can_be_added_and_large_ids_are_reported_apart():
    sketch = HotSketch(2)
    add(sketch, [])
    assert held(sketch) == {}
    assert sketch.score(torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0)
    add(sketch, [(2**62, 1), (2**62 + 2**40, 2), (2**63 - 1, 3)])
    assert held(sketch) == {2**62: 1, 2**62 + 2**40: 2, 2**63 - 1: 3}


def test_scores_stay_float32_wherever_the_module_goes():
    sketch = HotSketch(1)
    add(sketch, [(1, 100_001)])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        sketch.to(dtype)
        assert sketch.scores.dtype == torch.float32
        assert held(sketch) == {1: 100_001}


def test_a_copy_and_a_state_dict_hold_the_same_and_go_their_own_way():
    sketch, fresh = HotSketch(3), HotSketch(3)
    add(sketch, [(1, 2), (7, 3)])
    fresh.load_state_dict(copy.deepcopy(sketch.state_dict()))
    twin = copy.deepcopy(sketch)
    add(sketch, [(1, 2)])
    assert held(fresh) == held(twin) == {1: 2, 7: 3}
    assert held(sketch) == {1: 4, 7: 3}


def test_a_slot_takes_twelve_bytes():
    assert HotSketch(5).nbytes == 5 * 4 * 12
    assert repr(HotSketch(5)) == "HotSketch(5 × 4)"


def test_there_has_to_be_a_bucket():
    with pytest.raises(CelrecError, match="buckets must be positive, not 0"):
        HotSketch(0)
