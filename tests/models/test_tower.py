import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.models.layers import Tower, flat
from tests.models import slow


@given(
    st.lists(st.integers(0, 3), max_size=3).filter(sum),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(0, 1000),
)
@settings(max_examples=50)
def test_it_is_hidden_layers_with_prelu_below_one_number(sizes, hidden, seed):
    tower = slow.shaken(Tower(sizes, hidden), seed)
    inputs = [torch.randn(6, size, dtype=torch.float64) for size in sizes]
    predicted = tower(inputs)
    assert predicted.shape == (6,)
    for n in range(6):
        vector = slow.joined(x[n].tolist() for x in inputs)
        assert predicted[n].item() == pytest.approx(slow.tower(tower, vector))


def test_its_layers_have_the_widths_that_were_asked_for():
    linear = slow.layers(Tower([3, 5], [16, 8]), torch.nn.Linear)
    assert [(layer.in_features, layer.out_features) for layer in linear] == [
        (8, 16),
        (16, 8),
        (8, 1),
    ]
    assert len(slow.layers(Tower([3, 5], [16, 8]), torch.nn.PReLU)) == 2


def test_its_bias_is_added_at_the_top():
    tower, inputs = Tower([3], [4, 2]), [torch.randn(5, 3)]
    before = tower(inputs)
    with torch.no_grad():
        tower.bias.add_(2.5)
    torch.testing.assert_close(tower(inputs), before + 2.5)


def test_a_sample_does_not_depend_on_the_others_nor_on_the_mode():
    tower, x = Tower([3], [4, 2]).double(), torch.randn(5, 3).double()
    together = tower([x])
    torch.testing.assert_close(torch.stack([tower([row]) for row in x]), together)
    assert torch.equal(tower.eval()([x]), tower.train()([x]))


def test_no_features_are_a_vector_of_nothing_with_as_many_axes():
    for shape in ((3,), (5, 3), (5, 1, 3), (0, 3)):
        like = torch.randn(*shape, dtype=torch.float64)
        nothing = flat(None, like)
        assert nothing.shape == (*[1] * (len(shape) - 1), 0)
        assert nothing.dtype == like.dtype


def test_features_are_put_side_by_side_in_their_order():
    features = torch.arange(24.0).view(2, 4, 3)
    made = flat(features, torch.zeros(2, 3))
    assert made.tolist() == [list(map(float, range(12))), list(map(float, range(12, 24)))]
    assert flat(torch.zeros(0, 4, 3), torch.zeros(0, 3)).shape == (0, 12)
    assert flat(torch.zeros(5, 0, 3), torch.zeros(5, 3)).shape == (5, 0)


few = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), few, st.data())
@settings(max_examples=40)
def test_it_can_begin_as_the_sum_over_one_input_where_that_is_positive(sizes, hidden, data):
    tower = slow.shaken(Tower(sizes, hidden))
    number = data.draw(st.integers(0, len(sizes) - 1))
    tower.begin_as_sum(number)
    inputs = [torch.randn(20, size, dtype=torch.float64) for size in sizes]
    total = inputs[number].sum(-1)
    predicted = tower(inputs)
    torch.testing.assert_close(predicted[total > 0], total[total > 0])
    for activation in slow.layers(tower, torch.nn.PReLU):  # and if not, what is left of it
        total = torch.where(total > 0, total, activation.weight * total)
    torch.testing.assert_close(predicted, total)


def test_beginning_as_a_sum_leaves_the_other_units_as_they_are():
    tower = slow.shaken(Tower([2, 3], [4, 3]))
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    tower.begin_as_sum(1)
    after = tower.state_dict()
    *hidden, top = ["first.linear", "rest.1", "rest.3"]
    for name in hidden:
        for part in ("weight", "bias"):
            assert torch.equal(after[f"{name}.{part}"][1:], before[f"{name}.{part}"][1:])
            assert not torch.equal(after[f"{name}.{part}"][0], before[f"{name}.{part}"][0])
    assert after[f"{top}.weight"].tolist() == [[1.0, 0.0, 0.0]]
    assert after[f"{top}.bias"].tolist() == [0.0]


@given(few, st.integers(0, 100))
@settings(max_examples=20)
def test_it_can_begin_at_zero_with_all_below_the_top_as_it_was(hidden, seed):
    tower = slow.shaken(Tower([2, 3], hidden), seed)
    before = [value.clone() for value in tower.parameters()]
    tower.begin_at_zero()
    inputs = [torch.randn(6, size, dtype=torch.float64) for size in (2, 3)]
    assert tower(inputs).tolist() == [0.0] * 6
    for value, kept in zip(list(tower.parameters())[:-2], before[:-2], strict=True):
        assert torch.equal(value, kept)
