import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap

from celrec.models import attention
from celrec.models.attention import Layers, TargetAttention, fused_attention, tensor_attention
from celrec.models.interaction import History

SHAPES = [(5, 4, 3, 6, 2), (1, 1, 1, 1, 1), (7, 1, 2, 9, 4)]


def made(samples, length, width, dim, upper, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    number = samples + 1
    row = torch.randint(number, (samples, length), generator=rng)
    filled = torch.rand(samples, length, generator=rng) < 0.7
    shapes = [(samples, dim), (samples, width), (number, dim), (width, dim), (width, dim), (1,)]
    shapes += [(upper, width), (upper,), (1,), (upper,), (1,)]
    numbers = [torch.randn(shape, generator=rng, dtype=dtype) for shape in shapes]
    return row, filled, *(one.requires_grad_() for one in numbers)


def given_to(function, row, filled, target, alone, rows, *layers):
    return function(row, filled, target, alone, rows, Layers(*layers))


def slow(row, filled, target, alone, rows, layers):
    """One number after the other."""
    interests = torch.zeros(len(row), rows.shape[1], dtype=torch.float64)
    weights = torch.zeros(row.shape, dtype=torch.float64)

    def bent(x, slope):
        return x if x > 0 else float(slope) * x

    for n, places in enumerate(row.tolist()):
        scores = {}
        for k, r in enumerate(places):
            if not filled[n, k]:
                continue
            units = []
            for h in range(len(layers.scale)):
                matrix = layers.scale[h] * target[n] + layers.shift[h]
                units.append(bent(float(matrix @ rows[r] + alone[n, h]), layers.first_slope))
            score = float(layers.last_bias)
            for g in range(len(layers.second)):
                x = float(layers.second_bias[g])
                x += sum(float(w) * u for w, u in zip(layers.second[g], units, strict=True))
                score += float(layers.last[g]) * bent(x, layers.second_slope)
            scores[k] = math.exp(score / math.sqrt(rows.shape[1]))
        for k, score in scores.items():
            weights[n, k] = score / sum(scores.values())
            interests[n] += weights[n, k] * rows[row[n, k]]
    return interests, weights


@given(st.tuples(*[st.integers(1, 7)] * 5), st.integers(0, 1000))
@settings(max_examples=60)
def test_interests_and_weights_are_those_of_a_loop(shape, seed):
    inputs = [one.detach() for one in made(*shape, seed=seed)]
    found = given_to(fused_attention, *inputs)
    assert found is not None
    expected = given_to(slow, *inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(given_to(tensor_attention, *inputs), expected)


@given(st.tuples(*[st.integers(1, 7)] * 5), st.integers(0, 1000))
@settings(max_examples=60)
def test_gradients_are_those_of_tensor_operations(shape, seed):
    row, filled, *numbers = made(*shape, seed=seed)
    one = given_to(fused_attention, row, filled, *numbers)
    other = given_to(tensor_attention, row, filled, *numbers)
    slopes = [torch.randn_like(part) for part in other]
    torch.testing.assert_close(
        torch.autograd.grad(one, numbers, slopes), torch.autograd.grad(other, numbers, slopes)
    )


@pytest.mark.parametrize("number", [0, 1])
def test_either_of_the_two_may_be_all_that_is_used(number):
    row, filled, *numbers = made(5, 4, 3, 6, 2)
    slopes = [
        torch.autograd.grad(given_to(way, row, filled, *numbers)[number].square().sum(), numbers)
        for way in (fused_attention, tensor_attention)
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("shape", SHAPES)
def test_single_precision_stays_what_it_is(shape):
    row, filled, *numbers = made(*shape, dtype=torch.float32)
    found = given_to(fused_attention, row, filled, *numbers)
    expected = given_to(tensor_attention, row, filled, *(one.double() for one in numbers))
    assert {one.dtype for one in found} == {torch.float32}
    torch.testing.assert_close(found, tuple(one.float() for one in expected))


def test_gradients_have_gradients():
    row, filled, *numbers = made(3, 2, 2, 3, 2)
    filled[0] = False

    def both(*given):
        return given_to(fused_attention, row, filled, *given)

    assert torch.autograd.gradcheck(both, numbers)
    assert torch.autograd.gradgradcheck(both, numbers)


def test_gradients_of_gradients_are_reported_apart_where_inputs_depend_on_each_other():
    row, filled, target, _, rows, *layers = made(4, 3, 2, 3, 2)
    matrix = torch.randn(3, 2, dtype=torch.float64)

    def twice(way):
        found = way(row, filled, target, target @ matrix, rows, Layers(*layers))[0].square().sum()
        (slope,) = torch.autograd.grad(found, target, create_graph=True)
        return slope, torch.autograd.grad(slope.square().sum(), [target, rows])

    torch.testing.assert_close(twice(fused_attention), twice(tensor_attention))


def test_what_is_not_a_number_is_passed_on():
    row, filled, *numbers = (one.detach() for one in made(3, 2, 2, 4, 2))
    row[:] = torch.tensor([[0, 0], [1, 0], [0, 2]])
    filled[:] = True
    numbers[2][1, 2] = torch.nan
    numbers[2][2, 0] = torch.inf
    interest, weights = given_to(fused_attention, row, filled, *numbers)
    assert weights[1:].isnan().all()
    assert interest[1].isnan().all()
    assert interest[0].isfinite().all()


def test_what_does_not_lie_side_by_side_will_do():
    row, filled, *numbers = (one.detach() for one in made(4, 3, 2, 5, 3))
    strided = [
        one.transpose(0, -1).contiguous().transpose(0, -1) for one in (row, filled, *numbers)
    ]
    torch.testing.assert_close(
        given_to(fused_attention, *strided), given_to(fused_attention, row, filled, *numbers)
    )


@pytest.mark.parametrize("number", range(13))
def test_what_is_too_short_is_left_to_others(number):
    # Loops would read beyond its end.
    inputs = [one.detach() for one in made(4, 3, 2, 5, 3)]
    inputs[number] = inputs[number][..., :-1]
    assert given_to(fused_attention, *inputs) is None


@pytest.mark.parametrize("row", [-1, 5])
def test_rows_that_are_not_there_are_left_to_others(row):
    inputs = [one.detach() for one in made(4, 3, 2, 5, 3)]
    assert given_to(fused_attention, *inputs) is not None
    inputs[0][2, 1] = row
    assert given_to(fused_attention, *inputs) is None


def test_other_numbers_and_many_threads_are_left_to_others(monkeypatch):
    row, filled, *numbers = (one.detach() for one in made(4, 3, 2, 5, 3))
    assert given_to(fused_attention, row, filled, *(one.bfloat16() for one in numbers)) is None
    assert given_to(fused_attention, row, filled, numbers[0].float(), *numbers[1:]) is None
    assert given_to(fused_attention, row.int(), filled, *numbers) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert given_to(fused_attention, row, filled, *numbers) is None


@pytest.fixture
def unit():
    torch.manual_seed(0)
    return TargetAttention(5, [4, 3])


@pytest.fixture
def calls(monkeypatch):
    """How often machine code was used."""
    found = []
    forward = attention.attention_forward
    monkeypatch.setattr(attention, "attention_forward", lambda *a: found.append(1) or forward(*a))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return found


def history(samples=6, length=4, dim=5):
    rows, row = torch.randn(9, dim), torch.randint(9, (samples, length))
    return History(None, torch.rand(samples, length) > 0.3, rows, row)


def test_attention_has_one_result_however_a_history_is_given(unit, calls):
    by_row, target = history(), torch.randn(6, 5)
    by_vector = History(by_row.vectors, by_row.filled)
    found = unit(target, by_row), unit.interest(target, by_row)
    same = unit(target, by_vector), unit.interest(target, by_vector)
    assert len(calls) == 4
    # With an axis more, it is left to tensor operations.
    wide = History(by_vector.vectors.unsqueeze(1), by_row.filled.unsqueeze(1))
    other = unit(target.unsqueeze(1), wide), unit.interest(target.unsqueeze(1), wide)
    assert len(calls) == 4
    torch.testing.assert_close(found, same)
    torch.testing.assert_close(found, tuple(one.squeeze(1) for one in other))


def test_one_hidden_layer_and_more_than_two_will_do(calls):
    target, past = torch.randn(6, 5), history()
    for hidden in ([4], [4, 3, 2]):
        other = TargetAttention(5, hidden)
        weights = other(target, past)
        torch.testing.assert_close(
            other.interest(target, past), (weights.unsqueeze(-1) * past.vectors).sum(-2)
        )
    assert not calls


def test_transformed_functions_are_left_to_tensors(unit, calls):
    past, target = history().gathered(), torch.randn(6, 5)
    # The first place is always filled, so that no history is empty.
    past.filled[:, 0] = True

    def loss(one, vectors, filled):
        alone = History(vectors.unsqueeze(0), filled.unsqueeze(0))
        return unit.interest(one.unsqueeze(0), alone).square().sum()

    each = vmap(grad(loss))(target, past.vectors, past.filled)
    assert not calls
    inputs = target.clone().requires_grad_()
    unit.interest(inputs, past).square().sum().backward()
    assert len(calls) == 1
    torch.testing.assert_close(each, inputs.grad)


@pytest.mark.parametrize("short", ["target", "vectors"])
def test_vectors_of_other_lengths_are_refused(unit, short):
    target, past = torch.randn(6, 5), history().gathered()
    if short == "target":
        target = target[:, :-1]
    else:
        past = History(past.vectors[..., :-1], past.filled)
    with pytest.raises(RuntimeError):
        unit.interest(target, past)


def test_rows_that_are_not_there_are_refused(unit):
    past = history()
    past.row[0, 0] = 9
    with pytest.raises(IndexError):
        unit.interest(torch.randn(6, 5), past)
