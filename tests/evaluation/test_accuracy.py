import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import read
from celrec.evaluation.metrics import COLD_LIMIT, Accuracy
from tests.evaluation.test_metrics import slow_area

COUNTS = np.array([COLD_LIMIT + 1, COLD_LIMIT, 1000, 0])


def rows(items, targets):
    known = read({"user": [0] * 4, "item": [0, 1, 2, 3], "rating": [1.0] * 4})
    table = {"user": [0] * len(items), "item": items, "rating": targets}
    return read(table, like=known)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(-2, 2)), min_size=1, max_size=30
    )
)
def test_errors_and_areas_are_those_of_all_and_of_cold_items(events):
    items, targets, predicted = (list(column) for column in zip(*events, strict=True))
    found = Accuracy.of(predicted, rows(items, targets), COUNTS)
    everything = list(range(len(items)))
    cold = [n for n in everything if items[n] not in (0, 2)]  # unseen ones too
    warm = [n for n in everything if items[n] in (0, 2)]
    parts = [("mse", "auc", everything), ("mse_cold", "auc_cold", cold), ("mse_warm", None, warm)]
    for error, area, part in parts:
        squares = [(predicted[n] - targets[n]) ** 2 for n in part]
        expected = sum(squares) / len(part) if part else None
        assert getattr(found, error) == (expected if expected is None else pytest.approx(expected))
        if area is None:
            continue
        if {targets[n] for n in part} == {0, 1}:
            expected = slow_area([predicted[n] for n in part], [targets[n] for n in part])
            assert getattr(found, area) == pytest.approx(expected)
        else:
            assert getattr(found, area) is None


@pytest.mark.parametrize("targets", [[0.0, 1.0, 2.0], [0.5, 1.0, 0.0], [1.0, 1.0, 1.0]])
def test_without_zeros_and_ones_there_is_no_area(targets):
    found = Accuracy.of([1.0, 2.0, 3.0], rows([0, 1, 2], targets), COUNTS)
    assert found.auc is found.auc_cold is None
    assert found.mse is not None


def test_of_nothing_nothing_is_said():
    empty = rows([0], [1.0])[:0]
    assert Accuracy.of([], empty, COUNTS) == Accuracy(None, None, None, None, None)
