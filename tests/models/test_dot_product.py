import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.models.dot_product import DotProduct


@st.composite
def shapes(draw):
    """Two shapes that go together, and what they make."""
    made = draw(st.lists(st.integers(0, 4), max_size=3))
    pair = []
    for _ in range(2):
        own = [draw(st.sampled_from([size, 1])) for size in made]
        pair.append(tuple(own[draw(st.integers(0, len(own))) :]))
    made = torch.broadcast_shapes(*pair)
    return *pair, tuple(made)


def at(vectors, place):
    """The vector at a place of the broadcast shape."""
    own = vectors.dim() - 1
    place = place[len(place) - own :]
    return vectors[tuple(0 if n == 1 else i for i, n in zip(place, vectors.shape, strict=False))]


@given(shapes(), st.integers(1, 5))
def test_leading_axes_broadcast_as_a_loop_would(shapes, dim):
    first, second, made = shapes
    user, item = torch.randn(*first, dim), torch.randn(*second, dim)
    predicted = DotProduct()(user, item)
    assert predicted.shape == made
    for place in itertools.product(*map(range, made)):
        a, b = at(user, place).tolist(), at(item, place).tolist()
        slow = sum(x * y for x, y in zip(a, b, strict=True))
        assert float(predicted[place]) == pytest.approx(slow, abs=1e-4)


def test_it_is_the_dot_product():
    user, item = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([3.0, 1.0, 4.0])
    assert DotProduct()(user, item).item() == 3


def test_all_items_for_all_users_are_the_product_of_matrices():
    users, items = torch.randn(6, 3), torch.randn(4, 3)
    predicted = DotProduct()(users[:, None], items)
    torch.testing.assert_close(predicted, users @ items.T)


def test_its_gradients_are_the_vectors_of_the_other_side():
    user, item = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    DotProduct()(user, item).sum().backward()
    torch.testing.assert_close(user.grad, item.detach())
    torch.testing.assert_close(item.grad, user.detach())


def test_history_and_features_change_nothing():
    user, item, more = torch.randn(3, 5, 2)
    model = DotProduct()
    assert torch.equal(model(user, item, history=more, features=more), model(user, item))


def test_it_has_nothing_to_save():
    assert not DotProduct().state_dict()
