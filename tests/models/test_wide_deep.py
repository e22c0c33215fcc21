import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.models.wide_deep import WideDeep
from tests.models import slow


def by_hand(model, sample):
    """Σ w + MLP(a, b, features), in plain numbers."""
    features = [] if sample.features is None else sample.features.tolist()
    rows = [sample.user.tolist(), sample.item.tolist(), *features]
    deep = slow.tower(model.tower, slow.joined(row[:-1] for row in rows))
    return sum(row[-1] for row in rows) + deep


@given(st.integers(1, 4), st.integers(0, 3), st.data())
@settings(max_examples=50)
def test_it_is_a_linear_part_beside_a_network(dim, fields, data):
    hidden = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    model = slow.shaken(WideDeep(dim, fields, hidden=hidden))
    sample = data.draw(slow.samples(dim + 1, fields))
    assert model(*sample).item() == pytest.approx(by_hand(model, sample))


def test_with_a_network_that_is_off_it_is_the_sum_of_last_columns():
    model = WideDeep(2, 2)
    with torch.no_grad():
        model.tower.rest[-1].weight.zero_()
    model.set_mean(3.0)
    features = torch.tensor([[9.0, 9, 0.5], [9, 9, 0.25]])
    predicted = model(torch.tensor([9.0, 9, 10]), torch.tensor([9.0, 9, 20]), features=features)
    assert predicted.item() == 3 + 10 + 20 + 0.5 + 0.25


def test_its_layers_have_the_widths_of_the_paper():
    linear = slow.layers(WideDeep(8, 2), torch.nn.Linear)
    widths = [(layer.in_features, layer.out_features) for layer in linear]
    assert widths == [(4 * 8, 16), (16, 8), (8, 1)]
