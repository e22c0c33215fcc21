from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from celrec.data.raw_log import in_unit, ticks_per_second


@pytest.mark.parametrize("year", [1974, 1999, 2024, 2150, 2260])
@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_a_moment_of_our_age_tells_its_unit(year, ticks):
    seconds = int(datetime(year, 5, 6, tzinfo=UTC).timestamp())
    assert ticks_per_second(seconds * ticks) == ticks
    assert ticks_per_second(-seconds * ticks) == ticks


def test_small_numbers_are_seconds():
    assert [ticks_per_second(time) for time in (0, 1, -5, 10**6)] == [1] * 4


@given(
    moment=st.integers(-(10**10), 10**10),
    given_in=st.sampled_from([1, 10**3, 10**6, 10**9]),
    ticks=st.sampled_from([1, 10**3, 10**6, 10**9]),
)
def test_a_moment_is_the_same_in_any_unit(moment, given_in, ticks):
    time = moment * given_in
    assume(-(2**63) <= time < 2**63 and ticks_per_second(time) == given_in)
    assume(-(2**63) <= moment * ticks < 2**63)
    assert in_unit(np.array([time]), ticks).tolist() == [moment * ticks]


@given(
    times=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    ticks=st.sampled_from([1, 10**9]),
)
def test_no_number_is_too_large_for_a_time(times, ticks):
    moved = in_unit(np.array(times, np.int64), ticks)
    for before, after in zip(times, moved.tolist(), strict=True):
        assert after <= 0 if before < 0 else after >= 0
