import pytest

from celrec import CelrecError
from celrec.online.eviction import IdleTime


@pytest.mark.parametrize(
    ("text", "length", "unit"),
    [
        ("1", 1, None),
        ("1000000", 10**6, None),
        (" 90d ", 90, "d"),
        ("12h", 12, "h"),
        ("30m", 30, "m"),
        ("45s", 45, "s"),
    ],
)
def test_a_number_is_of_events_and_a_letter_names_a_unit_of_time(text, length, unit):
    idle_time = IdleTime.parse(text)
    assert idle_time == IdleTime(length, unit)
    assert str(idle_time) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "0", "0d", "-5", "1.5d", "d", "5w", "5 d", "1e6", "²", "9" * 19]
)
def test_all_else_is_one_line_that_names_it(text):
    with pytest.raises(CelrecError) as told:
        IdleTime.parse(text)
    assert str(told.value) == (
        "evict_after must be a number of events such as 1000000, or a time such as 90d, 12h, 30m "
        f"or 45s, not {text!r}"
    )


def test_a_unit_that_there_is_not_is_told():
    with pytest.raises(CelrecError, match="not '5y'"):
        IdleTime(5, "y")


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_time_is_in_the_unit_of_the_timestamps(ticks):
    now = 1_700_000_000
    for text, seconds in (("2d", 172_800), ("3h", 10_800), ("7m", 420), ("9s", 9)):
        assert IdleTime.parse(text).begin(now * ticks) == (now - seconds) * ticks
    assert IdleTime(7).begin(now * ticks) == now * ticks - 7
