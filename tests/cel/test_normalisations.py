import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from celrec.cel.split import (
    NORMALISATIONS,
    centred,
    identity,
    standardised,
    unit_rows,
)

gradients = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 8), st.integers(1, 4)), elements=st.floats(-1e3, 1e3)
)


def random(rows, columns):
    return np.random.default_rng(0).normal(size=(rows, columns)) * 5 + 3


def test_none_leaves_gradients_as_they_are():
    known = torch.from_numpy(random(5, 3))
    assert torch.equal(identity(known), known)


@given(gradients)
def test_centred_columns_are_less_their_mean(known):
    made = centred(torch.from_numpy(known)).numpy()
    assert np.allclose(made, known - known.mean(0), atol=1e-9)


def test_standardised_columns_have_mean_zero_and_variance_one():
    known = random(50, 4)
    made = standardised(torch.from_numpy(known)).numpy()
    assert np.allclose(made, (known - known.mean(0)) / known.std(0))


@given(st.integers(1, 50), st.floats(-1e30, 1e30))
def test_a_constant_column_becomes_zero_whatever_its_rounding(rows, constant):
    # The mean of equal numbers need not be that number: (0.1 + 0.1 + 0.1) / 3 > 0.1.
    known = torch.full((rows, 2), constant, dtype=torch.float64)
    known[:, 1] = torch.arange(rows)
    for normalise in (centred, standardised):
        assert normalise(known)[:, 0].tolist() == [0] * rows


def test_rows_get_length_one():
    known = random(6, 3)
    made = unit_rows(torch.from_numpy(known)).numpy()
    assert np.allclose(made, known / np.linalg.norm(known, axis=1, keepdims=True))


def test_a_row_of_zeros_stays_one():
    known = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    torch.testing.assert_close(unit_rows(known), torch.tensor([[0.0, 0.0], [0.6, 0.8]]))


@given(gradients, st.sampled_from(sorted(NORMALISATIONS)))
def test_no_normalisation_gives_anything_but_numbers_or_changes_what_it_was_given(known, name):
    given_ = torch.from_numpy(known.copy())
    made = NORMALISATIONS[name](given_)
    assert made.shape == given_.shape
    assert made.isfinite().all()
    assert np.array_equal(given_.numpy(), known)


@pytest.mark.parametrize("name", sorted(NORMALISATIONS))
def test_one_member_is_no_problem(name):
    assert NORMALISATIONS[name](torch.tensor([[2.0, 0.0]])).isfinite().all()
