import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from celrec.models.layers import JoinedLinear
from tests.models import slow


@given(st.lists(st.integers(0, 4), max_size=4).filter(sum), st.integers(1, 3), st.data())
@settings(max_examples=50)
def test_it_is_a_linear_layer_on_the_inputs_side_by_side(sizes, out, data):
    layer = slow.shaken(JoinedLinear(sizes, out))
    axes = data.draw(st.lists(st.integers(0, 3), max_size=3))
    leads = [[data.draw(st.sampled_from([size, 1])) for size in axes] for _ in sizes]
    leads = [lead[data.draw(st.integers(0, len(lead))) :] for lead in leads]
    inputs = [
        torch.randn(*lead, n, dtype=torch.float64) for lead, n in zip(leads, sizes, strict=True)
    ]
    made = layer(inputs)
    shape = torch.broadcast_shapes(*leads)
    assert made.shape == (*shape, out)
    for place in itertools.product(*map(range, shape)):
        vector = slow.joined(slow.at(x, place).tolist() for x in inputs)
        assert made[place].tolist() == pytest.approx(slow.linear(layer.linear, vector))


def test_gradients_of_weights_are_those_of_inputs_side_by_side():
    layer = slow.shaken(JoinedLinear([3, 0, 2], 4))
    users, nothing, items = (torch.randn(2, n, s).double() for n, s in [(1, 3), (1, 0), (5, 2)])
    found = torch.autograd.grad(layer([users, nothing, items]).square().sum(), layer.parameters())
    together = layer.linear(torch.cat([users.expand(-1, 5, -1), items], -1))
    expected = torch.autograd.grad(together.square().sum(), layer.parameters())
    torch.testing.assert_close(found, expected)


def test_what_is_the_same_for_all_candidates_is_multiplied_once():
    layer = JoinedLinear([30, 2], 4)
    with FlopCounterMode(display=False) as counter:
        layer([torch.randn(7, 1, 30), torch.randn(7, 50, 2)])
    assert counter.get_total_flops() == 2 * 4 * (7 * 30 + 7 * 50 * 2)


def test_each_size_needs_its_input():
    layer = JoinedLinear([3, 2], 4)
    with pytest.raises(ValueError, match="longer than argument 1"):
        layer([torch.randn(3)])
    with pytest.raises(ValueError, match="shorter than argument 1"):
        layer([torch.randn(3), torch.randn(2), torch.randn(2)])


def test_it_begins_as_a_linear_layer_of_torch():
    torch.manual_seed(0)
    layer = JoinedLinear([3, 0, 5], 4)
    torch.manual_seed(0)
    plain = torch.nn.Linear(8, 4)
    assert torch.equal(layer.linear.weight, plain.weight)
    assert torch.equal(layer.linear.bias, plain.bias)


@pytest.mark.parametrize(
    ("first", "second"), [((7,), (7,)), ((5, 1), (7,)), ((7,), (5, 1)), ((5, 7), (7,)), ((), (7,))]
)
def test_a_pair_stands_for_its_product(first, second):
    layer = JoinedLinear([3, 4], 2).double()
    one, x, y = (torch.randn(*lead, n).double() for lead, n in (((7,), 3), (first, 4), (second, 4)))
    torch.testing.assert_close(layer([one, (x, y)]), layer([one, x * y]))
