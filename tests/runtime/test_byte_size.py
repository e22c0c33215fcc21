import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec.errors import CelrecError
from celrec.runtime.memory_budget import byte_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("8GB", 8 * 10**9),
        ("500MB", 500 * 10**6),
        ("500 mb", 500 * 10**6),
        (" 1.5GiB ", 3 * 2**29),
        ("2TiB", 2**41),
        ("1kb", 1000),
        ("1KiB", 1024),
        ("12B", 12),
        ("0.5TB", 5 * 10**11),
    ],
)
def test_sizes_are_what_people_mean(text, size):
    assert byte_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "-8GB", "8 G B", "8gigs", "1e9", "1,5GB", "1.GB", "nan", "8GB8", "٣"]
)
def test_anything_else_is_explained(text):
    with pytest.raises(CelrecError, match=re.escape("--memory must be a number of bytes such")):
        byte_size(text, "--memory")


@given(st.integers(0, 2**59))
def test_plain_numbers_are_exact(number):
    assert byte_size(str(number)) == number
