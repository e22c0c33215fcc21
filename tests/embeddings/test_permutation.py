import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.embeddings.hashing import PermutedDigits, balanced

RADICES = st.lists(st.integers(1, 30), min_size=1, max_size=4).filter(
    lambda radices: 2 <= math.prod(radices) <= 20_000
)


def slow_digits(digits, one):
    """The formula with integers of any size."""
    number = one % digits.modulus
    for factor, offset in digits.steps:
        number = (factor * number + offset) % digits.modulus
    found = []
    for radix in digits.radices:
        found.append(number % radix)
        number //= radix
    assert number == 0
    return found


@given(RADICES, st.integers(-(2**70), 2**70))
def test_no_two_ids_have_the_same_digits_and_all_digits_are_used(radices, seed):
    digits = PermutedDigits(radices, seed)
    found = torch.stack(digits(torch.arange(math.prod(radices) - 1)), -1)
    assert len(found.unique(dim=0)) == math.prod(radices) - 1
    if math.prod(radices) > 2 * max(radices):
        assert (found.max(0).values + 1).tolist() == radices


@given(
    st.lists(st.integers(1, 2**20), min_size=2, max_size=3).filter(lambda r: math.prod(r) > 1),
    st.integers(0, 2**40),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
)
def test_digits_follow_the_formula_without_overflow(radices, seed, ids):
    digits = PermutedDigits(radices, seed)
    found = torch.stack(digits(torch.tensor(ids)), -1)
    assert found.tolist() == [slow_digits(digits, one) for one in ids]


@pytest.mark.parametrize("radices", [[99, 99], [16, 16, 16], [64, 64]])
def test_ids_that_share_a_digit_under_one_seed_do_not_under_another(radices):
    ids = torch.arange(3000)
    firsts = PermutedDigits(radices, 0)(ids)
    seconds = PermutedDigits(radices, 1)(ids)
    for first, second, radix in zip(firsts, seconds, radices, strict=True):
        together = (first[:, None] == first).fill_diagonal_(False)
        still = second[:, None] == second
        assert float(still[together].double().mean()) < 3 / radix


def test_neighbouring_ids_seldom_share_a_digit():
    for seed in range(20):
        for digit in PermutedDigits([99, 99], seed)(torch.arange(3952)):
            assert float((digit[1:] == digit[:-1]).double().mean()) < 0.5


@given(st.integers(1, 1000), st.integers(1, 50))
def test_balanced_parts_are_as_equal_as_can_be(total, parts):
    found = balanced(total, parts)
    assert (len(found), sum(found)) == (parts, total)
    assert max(found) - min(found) <= 1
