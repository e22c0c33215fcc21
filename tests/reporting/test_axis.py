import math

from hypothesis import given
from hypothesis import strategies as st

from celrec.reporting.drawing import Axis

NUMBERS = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.integers(1, 12))
def test_all_values_lie_on_the_axis_and_marks_are_round_and_few(values, most):
    axis = Axis.over(values, 0, 100, most=most)
    assert axis.low <= min(values) + 1e-9 * abs(axis.low)
    assert axis.high >= max(values) - 1e-9 * abs(axis.high)
    assert 2 <= len(axis.ticks) <= most + 3
    steps = [b - a for a, b in zip(axis.ticks, axis.ticks[1:], strict=False)]
    assert max(steps) - min(steps) <= 1e-6 * max(steps)
    leading = round(steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9), 3)
    assert leading in (1, 2, 2.5, 5, 10)
    assert len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)


@given(st.lists(NUMBERS, min_size=2, max_size=8, unique=True))
def test_larger_values_stand_higher(values):
    axis = Axis.over(values, 100, 0, tight=True)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places, reverse=True)
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)


def test_without_values_and_with_equal_ones_there_is_an_axis_too():
    for values in ([], [math.nan], [3.0, 3.0], [0.0], [-2.0]):
        axis = Axis.over(values, 0, 1)
        assert axis.low < axis.high
        assert all(math.isfinite(axis.at(value)) for value in values if math.isfinite(value))
