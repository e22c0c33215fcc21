import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.evaluation.metrics import area_under_curve, log_loss, mean_squared_error


def test_the_error_is_the_mean_of_the_squares():
    assert mean_squared_error([1.0, 2.0, 5.0], [1.0, 4.0, 4.0]) == pytest.approx(5 / 3)


@pytest.mark.parametrize(("predicted", "target"), [([1.0], [1.0, 2.0]), ([], [])])
def test_unequal_and_empty_shapes_are_refused(predicted, target):
    with pytest.raises(CelrecError, match="shape"):
        mean_squared_error(predicted, target)


def slow_area(predicted, target):
    """Every 1 against every 0."""
    wins = [
        (mine > other) + (mine == other) / 2
        for mine, one in zip(predicted, target, strict=True)
        for other, zero in zip(predicted, target, strict=True)
        if one and not zero
    ]
    return sum(wins) / len(wins)


scores = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, width=32))


@given(st.lists(st.tuples(scores, st.booleans()), min_size=2, max_size=40))
def test_the_area_is_the_share_of_pairs_in_the_right_order_with_ties_for_half(pairs):
    predicted, target = zip(*pairs, strict=True)
    if all(target) or not any(target):
        with pytest.raises(CelrecError, match="target must hold both 0 and 1"):
            area_under_curve(predicted, target)
        return
    expected = slow_area(predicted, target)
    assert area_under_curve(predicted, target) == pytest.approx(expected, abs=1e-12)
    numbers = np.array(target, np.float32)
    assert area_under_curve(np.array(predicted), numbers) == pytest.approx(expected, abs=1e-12)


def test_the_area_of_order_disorder_and_no_order():
    target = [0, 1, 0, 1]
    assert area_under_curve([1, 2, 1, 2], target) == 1.0
    assert area_under_curve([2, 1, 2, 1], target) == 0.0
    assert area_under_curve([3, 3, 3, 3], target) == 0.5


def test_each_target_needs_a_prediction():
    with pytest.raises(CelrecError, match="one for each prediction"):
        area_under_curve([1.0, 2.0, 3.0], [0, 1])


@given(st.lists(st.tuples(st.floats(0.001, 0.999), st.booleans()), min_size=1, max_size=20))
def test_the_log_loss_is_the_mean_surprise(pairs):
    surprises = [-np.log(p if x else 1 - p) for p, x in pairs]
    found = log_loss([p for p, _ in pairs], [float(x) for _, x in pairs])
    assert found == pytest.approx(np.mean(surprises))


def test_even_the_surest_mistake_has_a_finite_loss():
    assert log_loss([1.0, 1.0], [0, 1]) == pytest.approx(7 * np.log(10) / 2)


@pytest.mark.parametrize(
    ("predicted", "target"), [([], []), ([0.5], [1, 0]), ([1.5], [1]), ([0.5], [2])]
)
def test_what_has_no_log_loss_is_told(predicted, target):
    with pytest.raises(CelrecError):
        log_loss(predicted, target)
