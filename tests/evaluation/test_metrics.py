import pytest

from celrec import CelrecError
from celrec.evaluation.metrics import mean_squared_error


def test_the_error_is_the_mean_of_the_squares():
    assert mean_squared_error([1.0, 2.0, 5.0], [1.0, 4.0, 4.0]) == pytest.approx(5 / 3)


@pytest.mark.parametrize(("predicted", "target"), [([1.0], [1.0, 2.0]), ([], [])])
def test_unequal_and_empty_shapes_are_refused(predicted, target):
    with pytest.raises(CelrecError, match="shape"):
        mean_squared_error(predicted, target)
