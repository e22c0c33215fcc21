import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduce.fold_mean import FoldMean

values = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@given(values)
def test_it_is_the_mean_and_its_standard_error(given_values):
    found = FoldMean.of(iter(given_values))
    assert found.mean == pytest.approx(statistics.fmean(given_values), abs=1e-9)
    error = statistics.stdev(given_values) / math.sqrt(len(given_values))
    assert found.error == pytest.approx(error, abs=1e-6)
    assert found.folds == len(given_values)


def test_of_one_fold_no_error_is_told_and_of_none_nothing():
    assert FoldMean.of([0.5]) == FoldMean(0.5, 0.0, 1)
    assert FoldMean.of([0.5]).told(1) == "0.5"
    assert math.isnan(FoldMean.of([]).mean)
    assert FoldMean.of([]).told() == "–"
    assert FoldMean.of([0.5, 0.5]).told(1, "+") == "+0.5 ± 0.0"
