import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from celrec.online.known_ids import KnownIds

events = st.tuples(
    st.none() | st.sampled_from("abcdefgh"), st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)
)
steps = st.lists(st.lists(events, min_size=1, max_size=8) | st.integers(0, 2**8 - 1), max_size=8)


@given(steps)
def test_counts_sums_and_moments_are_those_of_a_dictionary(steps):
    known = KnownIds(moments=np.empty(0, np.int64))
    slow = {}
    for step in steps:
        if isinstance(step, int):  # keep some
            kept = [number for number in range(len(slow)) if step >> number & 1]
            known.keep(np.array(kept, np.int64))
            slow = {one: told for n, (one, told) in enumerate(slow.items()) if n in kept}
        else:
            ids, targets, moments = zip(*step, strict=True)
            numbers = known.numbers(pl.Series(ids, dtype=pl.String))
            for one in ids:
                if one is not None:
                    slow.setdefault(one, (0, 0, -(2**63)))
            places = [-1 if one is None else list(slow).index(one) for one in ids]
            assert numbers.tolist() == places
            known.add(numbers, np.array(targets, np.float32), np.array(moments, np.int64))
            for one, target, moment in step:
                if one is not None:
                    count, total, last = slow[one]
                    slow[one] = count + 1, total + target, max(last, moment)
        assert known.ids.ids.to_list() == list(slow)
        told = zip(known.counts.tolist(), known.sums.tolist(), known.moments.tolist(), strict=True)
        assert list(told) == list(slow.values())
        for since in (-(2**70), -5, 0, 2**62, 2**70):
            heard = [number for number, told in enumerate(slow.values()) if told[2] >= since]
            assert known.heard_since(since).tolist() == heard


def test_moments_are_kept_only_if_they_are_asked_for():
    silent, told = KnownIds(), KnownIds(moments=np.empty(0, np.int64))
    for known in (silent, told):
        numbers = known.numbers(pl.Series(range(1000)))
        known.add(numbers, np.ones(1000, np.float32), numbers)
    assert silent.moments is None
    assert silent.heard_since(999).tolist() == list(range(1000))
    assert told.heard_since(999).tolist() == [999]
    assert told.nbytes - silent.nbytes == 1000 * 8


def test_bytes_fall_when_ids_are_dropped():
    known = KnownIds(moments=np.empty(0, np.int64))
    known.numbers(pl.Series(range(10_000)))
    before = known.nbytes
    known.keep(np.arange(10))
    assert known.nbytes < before / 50
