import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.models.attention import broadcast_einsum
from tests.models import slow

LENGTH, DIM, HIDDEN = 3, 2, 4


def attended(left, right):
    """Σ_l w_l·k_l."""
    return [sum(w * key[d] for w, key in zip(left, right, strict=True)) for d in range(DIM)]


def scored(left, right):
    """The product of each key with each vector."""
    return [[slow.dot(vector, key) for vector in left] for key in right]


FORMS = {
    "l,ld->d": ((LENGTH,), (LENGTH, DIM), (DIM,), attended),
    "hd,ld->lh": ((HIDDEN, DIM), (LENGTH, DIM), (LENGTH, HIDDEN), scored),
}


@st.composite
def leads(draw, axes=6):
    """The leading axes of two tensors that go together."""
    made = draw(st.lists(st.sampled_from([0, 1, 2, 2, 3]), max_size=axes))
    pair = []
    for _ in range(2):
        own = [draw(st.sampled_from([size, 1])) for size in made]
        pair.append(tuple(own[draw(st.integers(0, len(own))) :]))
    return pair


@pytest.mark.parametrize("ends", FORMS)
@given(leads())
@settings(max_examples=60)
def test_it_is_a_loop_over_what_the_leading_axes_broadcast_to(ends, leads):
    first, second, end, by_hand = FORMS[ends]
    left = torch.randn(*leads[0], *first, dtype=torch.float64)
    right = torch.randn(*leads[1], *second, dtype=torch.float64)
    made = broadcast_einsum(left, right, ends)
    shape = torch.broadcast_shapes(*leads)
    assert made.shape == (*shape, *end)
    for place in itertools.islice(itertools.product(*map(range, shape)), 20):
        a, b = slow.at(left, place, len(first)), slow.at(right, place, 2)
        expected = torch.tensor(by_hand(a.tolist(), b.tolist()), dtype=torch.float64)
        torch.testing.assert_close(made[place], expected)


@pytest.mark.parametrize("axes", [4, 8, 9])
@pytest.mark.parametrize("ends", FORMS)
def test_many_leading_axes_are_not_mixed_up_with_the_last_ones(ends, axes):
    first, second, _, _ = FORMS[ends]
    left, right = torch.randn(*[2] * axes, *first), torch.randn(*[2] * axes, *second)
    flat = broadcast_einsum(left.flatten(0, axes - 1), right.flatten(0, axes - 1), ends)
    torch.testing.assert_close(broadcast_einsum(left, right, ends).flatten(0, axes - 1), flat)


def test_tensors_that_are_not_contiguous_will_do():
    weights = torch.randn(3, 50, 7).transpose(0, 2)
    history = torch.randn(8, 3, 1, 7).permute(3, 2, 1, 0)
    expected = torch.einsum("bcl,bld->bcd", weights, history.squeeze(1))
    torch.testing.assert_close(broadcast_einsum(weights, history, "l,ld->d"), expected)


@pytest.mark.parametrize(("lead", "lead_right"), [((7, 50), (7, 1)), ((50, 7), (7,))])
def test_no_history_is_copied_for_every_candidate(lead, lead_right):
    weights, history = torch.randn(*lead, 20), torch.randn(*lead_right, 20, 8)
    with slow.LargestTensor() as largest:
        broadcast_einsum(weights, history, "l,ld->d")
    assert largest.size == max(weights.numel(), history.numel())


def test_gradients_are_those_of_copies():
    weights = torch.randn(4, 5, LENGTH).double().requires_grad_()
    history = torch.randn(4, 1, LENGTH, DIM).double().requires_grad_()
    pull = torch.randn(4, 5, DIM).double()
    found = torch.autograd.grad(
        (broadcast_einsum(weights, history, "l,ld->d") * pull).sum(), [weights, history]
    )
    copied = (weights.unsqueeze(-1) * history).sum(-2)
    expected = torch.autograd.grad((copied * pull).sum(), [weights, history])
    torch.testing.assert_close(found, expected)
