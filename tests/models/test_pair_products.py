import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap

from celrec.models import _pair_products
from celrec.models._pair_products import pair_products


def made(samples, length, width, dim, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = (samples, dim), (samples, length, dim), (width, dim), (width, dim)
    return [torch.randn(shape, generator=rng, dtype=dtype, requires_grad=True) for shape in shapes]


def slow(target, keys, scale, shift):
    """One number after the other."""
    found = keys.new_zeros(*keys.shape[:2], len(scale))
    for n, k, h in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        found[n, k, h] = ((scale[h] * target[n] + shift[h]) * keys[n, k]).sum()
    # Where there are no products, gradients are 0.
    return found + 0 * sum(one.sum() for one in (target, keys, scale, shift))


@pytest.fixture(params=[True, False], ids=["machine code", "tensors"])
def way(request, monkeypatch):
    """Both ways, and a check that it was this one."""
    calls = []
    multiply = _pair_products.multiply
    monkeypatch.setattr(_pair_products, "multiply", lambda *a: calls.append(1) or multiply(*a))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1 if request.param else 3)
    yield
    assert bool(calls) == request.param


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 4, 3, 6), (1, 1, 1, 1), (0, 4, 3, 6), (5, 0, 3, 6)])
def test_products_and_gradients_are_those_of_a_loop(shape, dtype):
    inputs = made(*shape, dtype)
    found, expected = pair_products(*inputs), slow(*inputs)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, slope),
        torch.autograd.grad(expected, inputs, slope),
    )


@pytest.mark.usefixtures("way")
def test_gradients_have_gradients():
    assert torch.autograd.gradgradcheck(pair_products, made(3, 2, 2, 3))


@given(st.tuples(*[st.integers(1, 7)] * 4), st.integers(0, 100))
@settings(max_examples=30)
def test_both_ways_come_to_the_same(shape, seed):
    inputs = made(*shape, seed=seed)
    one = _pair_products._PairProducts.apply(*inputs)
    target, keys, *matrices = inputs
    other = pair_products(target.unsqueeze(1), keys.unsqueeze(1), *matrices).squeeze(1)
    torch.testing.assert_close(one, other)
    slope = torch.randn_like(other)
    torch.testing.assert_close(
        torch.autograd.grad(one, inputs, slope), torch.autograd.grad(other, inputs, slope)
    )


def test_what_is_not_a_number_is_passed_on():
    target, keys, scale, shift = (one.detach() for one in made(3, 2, 2, 4))
    keys[1, 0, 2] = torch.nan
    keys[2, 1, 0] = torch.inf
    found = pair_products(target, keys, scale, shift)
    assert found[1, 0].isnan().all()
    assert not found[2, 1].isfinite().any()
    assert found[0].isfinite().all()


@pytest.mark.usefixtures("way")
def test_rows_that_do_not_lie_side_by_side_will_do():
    inputs = [one.detach() for one in made(4, 3, 2, 5)]
    strided = [one.transpose(0, -1).contiguous().transpose(0, -1) for one in inputs]
    torch.testing.assert_close(pair_products(*strided), pair_products(*inputs))


def test_transformed_functions_and_mixed_numbers_are_left_to_tensors():
    target, keys, scale, shift = (one.detach() for one in made(4, 3, 2, 5))

    def loss(one, own):
        return pair_products(one.unsqueeze(0), own.unsqueeze(0), scale, shift).square().sum()

    each = vmap(grad(loss))(target, keys)
    inputs = target.clone().requires_grad_()
    pair_products(inputs, keys, scale, shift).square().sum().backward()
    torch.testing.assert_close(each, inputs.grad)
    half = pair_products(*(one.bfloat16() for one in (target, keys, scale, shift)))
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("short", range(4))
def test_rows_of_other_lengths_are_refused(short):
    inputs = [one.detach() for one in made(4, 3, 2, 5)]
    inputs[short] = inputs[short][..., :-1]
    with pytest.raises(RuntimeError):
        pair_products(*inputs)
