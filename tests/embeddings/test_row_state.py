from functools import partial

import pytest
import torch
from torch import optim

from celrec.embeddings.id_rows import (
    average_row_state,
    copy_row_state,
    copy_rows,
    reset_entries,
    reset_state,
)

OPTIMISERS = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": partial(optim.Adam, lr=0.1),
    "amsgrad": partial(optim.Adam, lr=0.1, amsgrad=True),
    "adamw": partial(optim.AdamW, lr=0.1),
    "adagrad": partial(optim.Adagrad, lr=0.1),
    "rmsprop": partial(optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "nadam": partial(optim.NAdam, lr=0.1),
    "rprop": partial(optim.Rprop, lr=0.1),
    "adafactor": partial(optim.Adafactor, lr=0.1),  # keeps state of a row as one number
}


def trained(make, steps):
    """Three rows of which only the first has been used, and their optimiser."""
    weight = torch.nn.Parameter(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
    optimizer = make([weight])
    for step in range(steps):
        weight.grad = torch.zeros_like(weight)
        weight.grad[0] = torch.tensor([1.0, -0.5]) * (step + 1)
        optimizer.step()
    return weight, optimizer


def rows_part(weight, optimizer):
    """Whether rows 0 and 1 get different from each other under equal gradients."""
    with torch.no_grad():
        weight[1] = weight[0]
    for step in range(5):
        weight.grad = torch.zeros_like(weight)
        weight.grad[:2] = torch.tensor([0.3, 0.7]) * (step - 2)
        optimizer.step()
        if not torch.equal(weight[0], weight[1]):
            return True
    return False


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_copied_row_goes_the_way_of_the_first_under_equal_gradients(name):
    weight, optimizer = trained(OPTIMISERS[name], steps=4)
    copy_row_state(optimizer, weight, 0, 1)
    assert not rows_part(weight, optimizer)


@pytest.mark.parametrize("name", sorted(OPTIMISERS.keys() - {"sgd"}))
def test_without_its_state_it_would_not(name):
    assert rows_part(*trained(OPTIMISERS[name], steps=4))


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_that_has_not_stepped_has_nothing_to_copy(name):
    weight, optimizer = trained(OPTIMISERS[name], steps=0)
    copy_row_state(optimizer, weight, 0, 1)
    assert not rows_part(weight, optimizer)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_other_rows_and_the_step_count_are_left_alone(name):
    weight, optimizer = trained(OPTIMISERS[name], steps=4)

    def kept():
        state = [value for value in optimizer.state[weight].values() if torch.is_tensor(value)]
        return [value[[0, 2]] if value.shape[:1] == (3,) else value.clone() for value in state]

    before = kept()
    copy_row_state(optimizer, weight, 0, 1)
    assert all(torch.equal(a, b) for a, b in zip(kept(), before, strict=True))


def test_a_tensor_that_is_not_optimised_is_no_problem():
    weight, optimizer = trained(OPTIMISERS["adam"], steps=4)
    before = [value.clone() for value in optimizer.state[weight].values()]
    copy_row_state(optimizer, torch.nn.Parameter(torch.zeros(3, 2)), 0, 1)
    after = optimizer.state[weight].values()
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert len(optimizer.state) == 1


@pytest.mark.parametrize("name", sorted(OPTIMISERS.keys() - {"adafactor"}))
def test_the_state_of_clusters_is_the_mean_of_their_members(name):
    weight, optimizer = trained(OPTIMISERS[name], steps=4)
    before = {
        key: value.clone()
        for key, value in optimizer.state[weight].items()
        if torch.is_tensor(value)
    }
    average_row_state(optimizer, weight, torch.tensor([1, 0, 1]), 4)
    for key, value in before.items():
        after = optimizer.state[weight][key]
        if value.shape == (3, 2):
            expected = torch.stack([value[1], (value[0] + value[2]) / 2, *torch.zeros(2, 2)])
            torch.testing.assert_close(after, expected)
        else:
            assert torch.equal(after, value)


def test_entries_and_whole_parameters_are_reset():
    weight, optimizer = trained(OPTIMISERS["adam"], steps=4)
    state = optimizer.state[weight]
    before = state["exp_avg"].clone()
    reset_entries(optimizer, weight, (torch.tensor([0]), torch.tensor([1])))
    assert state["exp_avg"][0].tolist() == [before[0, 0].item(), 0.0]
    assert int(state["step"]) == 4
    reset_state(optimizer, weight)
    assert not any(value.any() for value in state.values())


def test_without_an_optimiser_only_the_rows_are_copied():
    weight, _ = trained(OPTIMISERS["sgd"], steps=1)
    copy_rows(weight, torch.tensor([0]), torch.tensor([2]))
    assert torch.equal(weight[2], weight[0])
    copy_row_state(None, weight, 0, 1)
    reset_entries(None, weight, (torch.tensor([0]),))
    average_row_state(None, weight, torch.tensor([0, 0, 1]), 2)
    reset_state(None, weight)
