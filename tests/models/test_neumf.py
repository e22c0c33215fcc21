import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from celrec import CelrecError
from celrec.models.neumf import NeuMF
from tests.models import slow


def by_hand(model, sample):
    """w·[p∘q | MLP(p′, q′, features)] + c, in plain numbers."""
    split = model.product_dim
    user, item = sample.user.tolist(), sample.item.tolist()
    features = [] if sample.features is None else sample.features.tolist()
    product = [p * q for p, q in zip(user[:split], item[:split], strict=True)]
    *hidden, top = slow.layers(model, nn.Linear)
    deep = slow.joined([user[split:], item[split:], *features])
    for layer in hidden:
        deep = slow.relu(slow.linear(layer, deep))
    (predicted,) = slow.linear(top, product + deep)
    return predicted


@given(st.integers(2, 5), st.integers(0, 2), st.data())
@settings(max_examples=50)
def test_it_is_a_weighted_product_beside_a_network(dim, fields, data):
    product_dim = data.draw(st.integers(1, dim - 1))
    hidden = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    model = slow.shaken(NeuMF(dim, fields, product_dim=product_dim, hidden=hidden))
    sample = data.draw(slow.samples(dim, fields))
    assert model(*sample).item() == pytest.approx(by_hand(model, sample))


def test_its_layers_have_the_widths_of_the_paper():
    linear = slow.layers(NeuMF(24, 2), nn.Linear)
    widths = [(layer.in_features, layer.out_features) for layer in linear]
    assert widths == [(16 + 16 + 2 * 24, 16), (16, 8), (8 + 8, 1)]


def test_with_a_network_that_is_off_it_is_a_weighted_dot_product():
    model = NeuMF(5, product_dim=3, hidden=[2])
    with torch.no_grad():
        model.top.linear.weight[:] = torch.tensor([1.0, 2, 3, 0, 0])
        model.top.linear.bias.fill_(0.5)
    user, item = torch.tensor([1.0, 2, 3, 9, 9]), torch.tensor([4.0, -1, 2, 7, 7])
    assert model(user, item).item() == 4 - 2 * 2 + 3 * 6 + 0.5


@pytest.mark.parametrize("product_dim", [-1, 0, 4, 5])
def test_both_vectors_of_a_row_need_a_place(product_dim):
    with pytest.raises(CelrecError, match=f"product_dim must lie in 1 … 3, not {product_dim}"):
        NeuMF(4, product_dim=product_dim)
