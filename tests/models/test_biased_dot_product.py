import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.models.dot_product import BiasedDotProduct, DotProduct


def by_hand(mean, user, item):
    """μ + b_user + b_item + a·b, in plain numbers."""
    *a, user_bias = user
    *b, item_bias = item
    return mean + user_bias + item_bias + sum(x * y for x, y in zip(a, b, strict=True))


@given(
    st.floats(-5, 5, width=32),
    st.integers(1, 4),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
)
def test_leading_axes_broadcast_as_a_loop_would(mean, dim, sizes):
    first, second, third = sizes
    user, item = torch.randn(first, 1, third, dim), torch.randn(second, 1, dim)
    predicted = BiasedDotProduct(mean)(user, item)
    assert predicted.shape == (first, second, third)
    for i, j, k in itertools.product(*map(range, sizes)):
        slow = by_hand(mean, user[i, 0, k].tolist(), item[j, 0].tolist())
        assert float(predicted[i, j, k]) == pytest.approx(slow, abs=1e-4)


def test_it_is_the_mean_and_both_biases_and_the_dot_product():
    user, item = torch.tensor([1.0, 2.0, 0.25]), torch.tensor([3.0, -1.0, 0.5])
    assert BiasedDotProduct(3.5)(user, item).item() == 3.5 + 0.25 + 0.5 + (3 - 2)


def test_biases_are_not_multiplied():
    user, item = torch.tensor([0.0, 10.0]), torch.tensor([0.0, 20.0])
    assert BiasedDotProduct()(user, item).item() == 30


def test_vectors_of_zero_are_rated_with_the_mean():
    assert BiasedDotProduct(3.25)(torch.zeros(2, 4), torch.zeros(2, 4)).tolist() == [3.25] * 2


def test_without_biases_and_mean_it_is_the_plain_dot_product():
    user, item = torch.randn(2, 5, 4)
    user[:, -1] = item[:, -1] = 0
    plain = DotProduct()(user[:, :-1], item[:, :-1])
    torch.testing.assert_close(BiasedDotProduct()(user, item), plain)


def test_gradients_of_biases_are_one_and_of_factors_the_other_side():
    user, item = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    BiasedDotProduct(2.0)(user, item).sum().backward()
    for own, other in ((user, item), (item, user)):
        torch.testing.assert_close(own.grad[:, :-1], other.detach()[:, :-1])
        assert own.grad[:, -1].tolist() == [1] * 5


def test_the_mean_is_saved_and_not_trained():
    model, fresh = BiasedDotProduct(3.5), BiasedDotProduct()
    assert not list(model.parameters())
    assert list(model.state_dict()) == ["mean"]
    fresh.load_state_dict(model.state_dict())
    assert fresh.mean.item() == 3.5
    assert fresh(torch.zeros(2), torch.zeros(2)).item() == 3.5


@pytest.mark.parametrize("mean", [3, True, np.float64(3), np.int32(3)])
def test_a_mean_of_any_type_of_number_is_a_float(mean):
    # Were it kept as an integer, a mean that is loaded later would lose its fraction.
    model = BiasedDotProduct(mean)
    assert model.mean.dtype == torch.float32
    model.load_state_dict({"mean": torch.tensor(3.75)})
    assert model.mean.item() == 3.75


def test_the_mean_follows_to_another_float_type():
    model = BiasedDotProduct(3.5).to(torch.float64)
    assert model.mean.dtype == torch.float64
    vector = torch.ones(2, dtype=torch.float64)
    assert model(vector, vector).dtype == torch.float64


def test_history_and_features_change_nothing():
    user, item, more = torch.randn(3, 5, 2)
    model = BiasedDotProduct(1.0)
    assert torch.equal(model(user, item, history=more, features=more), model(user, item))
