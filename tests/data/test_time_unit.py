from datetime import UTC, datetime

import pytest

from celrec.data.time_unit import ticks_per_second


@pytest.mark.parametrize("year", [1974, 1999, 2024, 2150, 2260])
@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_a_moment_of_our_age_tells_its_unit(year, ticks):
    seconds = int(datetime(year, 5, 6, tzinfo=UTC).timestamp())
    assert ticks_per_second(seconds * ticks) == ticks
    assert ticks_per_second(-seconds * ticks) == ticks


def test_small_numbers_are_seconds():
    assert [ticks_per_second(time) for time in (0, 1, -5, 10**6)] == [1] * 4
