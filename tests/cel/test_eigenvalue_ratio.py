import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.cel.split import eigenvalue_ratio

seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(4, 20), st.integers(2, 6))


def draw(seed, size):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) + 1


@given(seeds, sizes, st.booleans())
def test_it_is_the_largest_eigenvalue_over_the_second(seed, size, normalise):
    gradients = draw(seed, size)
    matrix = gradients.double().numpy()
    if normalise:
        matrix = matrix - matrix.mean(0)
    values = sorted(np.linalg.eigvalsh(matrix.T @ matrix), reverse=True)
    expected = values[0] / values[1]
    assert eigenvalue_ratio(gradients, normalise=normalise) == pytest.approx(expected, rel=1e-6)


@given(seeds, sizes)
def test_it_is_at_least_one_and_has_no_unit(seed, size):
    gradients = draw(seed, size)
    ratio = eigenvalue_ratio(gradients)
    assert ratio >= 1
    assert eigenvalue_ratio(gradients * 1024) == pytest.approx(ratio)
    assert eigenvalue_ratio(gradients.flip(0).flip(1)) == pytest.approx(ratio)


def test_hand_computed_values():
    gradients = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    assert eigenvalue_ratio(gradients, normalise=False) == pytest.approx(9 / 4)
    mirrored = torch.cat([gradients, -gradients]) + 5
    assert eigenvalue_ratio(mirrored) == pytest.approx(9 / 4)  # by default the mean is no matter
    assert eigenvalue_ratio(mirrored, normalise=False) > 20


def test_small_second_eigenvalues_are_not_lost_in_rounding():
    gradients = torch.tensor([[1.0, 0.0], [0.0, 1e-9]], dtype=torch.float64)
    assert eigenvalue_ratio(gradients, normalise=False) == pytest.approx(1e18)


@pytest.mark.parametrize("normalise", [True, False])
def test_with_rank_one_the_first_component_is_all_there_is(normalise):
    strength = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    line = strength * torch.tensor([[0.1, -0.7, 0.3]], dtype=torch.float64)
    assert eigenvalue_ratio(line, normalise=normalise) == math.inf
    assert eigenvalue_ratio(strength, normalise=normalise) == math.inf


def test_without_any_component_there_is_no_ratio():
    assert math.isnan(eigenvalue_ratio(torch.zeros(4, 3), normalise=False))
    assert math.isnan(eigenvalue_ratio(torch.full((3, 3), 0.1, dtype=torch.float64)))
    assert math.isnan(eigenvalue_ratio(torch.tensor([[1.0, 2.0]])))


def test_the_gradients_of_parameters_are_taken_and_left_as_they_are():
    gradients = torch.eye(3, requires_grad=True)
    assert eigenvalue_ratio(gradients, normalise=False) == pytest.approx(1)
    values = torch.eye(3, dtype=torch.float64) * 2
    eigenvalue_ratio(values)
    assert torch.equal(values, torch.eye(3, dtype=torch.float64) * 2)


@pytest.mark.parametrize("shape", [(3,), (0, 3), (3, 0), (2, 2, 2)])
def test_what_is_no_matrix_of_gradients_is_refused(shape):
    with pytest.raises(CelrecError, match="gradients must be members × dim"):
        eigenvalue_ratio(torch.ones(shape))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_diverged_gradients_are_refused(value):
    with pytest.raises(CelrecError, match="gradients must be finite"):
        eigenvalue_ratio(torch.tensor([[1.0, value], [0.0, 1.0]]))
