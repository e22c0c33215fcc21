import math

import pytest

from celrec.reporting.wording import change, figure, size, times


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (3e15, "3,000 TB"),
    ],
)
def test_bytes_are_told_in_the_largest_unit(number, told):
    assert size(number) == told


def test_what_is_not_a_number_is_a_dash():
    assert figure(None) == figure(math.nan) == figure(math.inf) == "–"


def test_negative_numbers_have_as_many_digits():
    assert figure(-0.5) == "-0.5000"
    assert figure(123.456) == "123.46"


def test_changes_too_small_to_see_have_no_sign():
    assert change(1.0001, 1.0) == change(0.9999, 1.0) == "±0.0 %"
    assert change(0.5, 1.0) == "−50.0 %"


def test_ratios_have_no_more_digits_than_anybody_reads():
    assert times(9.94) == "9.9×"
    assert times(9.96) == "10×"
