import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.models.deepfm import DeepFM
from tests.models import slow


def by_hand(model, sample):
    """Σ w + Σ over pairs of fields of their dot product + MLP, in plain numbers."""
    features = [] if sample.features is None else sample.features.tolist()
    rows = [sample.user.tolist(), sample.item.tolist(), *features]
    vectors = [row[:-1] for row in rows]
    pairs = sum(slow.dot(a, b) for a, b in itertools.combinations(vectors, 2))
    return sum(row[-1] for row in rows) + pairs + slow.tower(model.tower, slow.joined(vectors))


@given(st.integers(1, 4), st.integers(0, 3), st.data())
@settings(max_examples=50)
def test_it_is_the_sum_over_pairs_of_fields_beside_a_linear_part_and_a_network(dim, fields, data):
    hidden = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    model = slow.shaken(DeepFM(dim, fields, hidden=hidden))
    sample = data.draw(slow.samples(dim + 1, fields))
    assert model(*sample).item() == pytest.approx(by_hand(model, sample))


def test_with_a_network_that_is_off_two_fields_are_a_biased_dot_product():
    model = DeepFM(2)
    with torch.no_grad():
        model.tower.rest[-1].weight.zero_()
    model.set_mean(3.0)
    user, item = torch.tensor([1.0, 2, 0.25]), torch.tensor([3.0, -4, 0.5])
    assert model(user, item).item() == 3 + 0.25 + 0.5 + (3 - 8)


def test_no_field_is_paired_with_itself():
    model = DeepFM(3, 1).double()
    alone = torch.tensor([5.0, 6, 7, 0]).double()
    zero = torch.zeros(4).double()
    for rows in itertools.permutations([alone, zero, zero]):
        user, item, feature = rows
        deep = slow.tower(model.tower, slow.joined(row[:-1].tolist() for row in rows))
        predicted = model(user, item, features=feature[None])
        assert predicted.item() == pytest.approx(deep)


def test_its_layers_have_the_widths_of_the_paper():
    linear = slow.layers(DeepFM(8, 2), torch.nn.Linear)
    widths = [(layer.in_features, layer.out_features) for layer in linear]
    assert widths == [(4 * 8, 16), (16, 8), (8, 1)]
