import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from celrec import CelrecError
from celrec.config.online import RULES, RowDescentConfig
from celrec.online.row_descent import RowDescent

ROWS, DIM = 6, 3

settings = st.builds(
    RowDescentConfig,
    rule=st.sampled_from(RULES),
    learning_rate=st.sampled_from([0.05, 0.5]),
    first_square=st.sampled_from([0.1, 2.0]),
    l2=st.sampled_from([0.0, 0.3]),
    average=st.booleans(),
    non_negative=st.booleans(),
)
lookups = st.lists(st.integers(0, ROWS - 1), max_size=12)


def slow_optimizer(parameter, how):
    """What torch has for dense tables."""
    if how.rule == "sgd":
        return torch.optim.SGD([parameter], lr=how.learning_rate, weight_decay=how.l2)
    return torch.optim.Adagrad(
        [parameter],
        lr=how.learning_rate,
        weight_decay=how.l2,
        initial_accumulator_value=how.first_square,
        eps=0,
    )


def slow_step(row, optimizer, values, how):
    """One step of one row, given the gradients of all of its lookups."""
    total = torch.stack(values).sum(0)
    row.grad = total / len(values) if how.average else total
    optimizer.step()
    if how.non_negative:
        with torch.no_grad():
            row.clamp_(min=0)


@given(settings, st.lists(lookups, max_size=4), st.integers(0, 99))
def test_steps_are_those_of_torch_for_each_row_that_is_looked_up(how, batches, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(ROWS, DIM, generator=generator).abs()
    rows = [nn.Parameter(row.double()) for row in weight]
    optimizers = [slow_optimizer(row, how) for row in rows]
    descent = RowDescent(weight, how)
    for batch in batches:
        gradients = torch.randn(len(batch), DIM, generator=generator)
        descent.step(torch.tensor(batch, dtype=torch.int64), gradients)
        for row in set(batch):
            own = [g.double() for r, g in zip(batch, gradients, strict=True) if r == row]
            slow_step(rows[row], optimizers[row], own, how)
    expected = torch.stack([row.detach() for row in rows]).float()
    torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-5)
    untouched = [row for row in range(ROWS) if not any(row in batch for batch in batches)]
    fresh = torch.Generator().manual_seed(seed)
    first = torch.randn(ROWS, DIM, generator=fresh).abs()
    assert torch.equal(weight[untouched], first[untouched])


@pytest.mark.parametrize("rule", RULES)
def test_the_penalty_draws_only_rows_that_are_looked_up(rule):
    weight = torch.ones(ROWS, DIM)
    descent = RowDescent(weight, RowDescentConfig(rule=rule, l2=0.5))
    descent.step(torch.tensor([4]), torch.zeros(1, DIM))
    assert (weight < 1).any(1).tolist() == [row == 4 for row in range(ROWS)]


def test_a_parameter_is_moved_in_place():
    table = nn.Embedding(ROWS, DIM)
    before = table.weight.detach().clone()
    RowDescent(table.weight, RowDescentConfig()).step(torch.tensor([1]), torch.ones(1, DIM))
    assert (table.weight != before).any(1).tolist() == [row == 1 for row in range(ROWS)]


def test_rows_that_are_all_different_can_be_moved_at_once():
    both = [torch.ones(ROWS, DIM) for _ in range(2)]
    gradients = torch.arange(6.0).view(2, DIM)
    RowDescent(both[0], RowDescentConfig()).step(torch.tensor([5, 0]), gradients)
    RowDescent(both[1], RowDescentConfig()).descend(np.array([5, 0]), gradients.numpy())
    assert torch.equal(*both)


@given(st.sampled_from(RULES), st.integers(0, 4))
def test_a_table_that_grows_keeps_what_is_known_of_its_rows(rule, more):
    how = RowDescentConfig(rule=rule)
    generator = torch.Generator().manual_seed(0)
    steps = [
        (torch.randint(ROWS, (5,), generator=generator), torch.randn(5, DIM, generator=generator))
        for _ in range(4)
    ]
    plain, small = torch.ones(ROWS, DIM), torch.ones(ROWS, DIM)
    never, grows = RowDescent(plain, how), RowDescent(small, how)
    for step in steps[:2]:
        never.step(*step)
        grows.step(*step)
    small.data = torch.cat([small, torch.ones(more, DIM)])
    for step in steps[2:]:
        never.step(*step)
        grows.step(*step)
    assert torch.equal(small[:ROWS], plain)
    if more:  # a new row begins as rows do
        grows.step(torch.tensor([ROWS + more - 1]), torch.full((1, DIM), 2.0))
        alone = torch.ones(1, DIM)
        RowDescent(alone, how).step(torch.tensor([0]), torch.full((1, DIM), 2.0))
        assert torch.equal(small[-1:], alone)


@pytest.mark.parametrize("rule", RULES)
def test_the_state_is_all_that_steps_depend_on(rule):
    how = RowDescentConfig(rule=rule)
    weight = torch.ones(ROWS, DIM)
    descent = RowDescent(weight, how)
    descent.step(torch.tensor([0, 3, 3]), torch.ones(3, DIM))
    again = weight.clone()
    other = RowDescent(again, how)
    other.load_state_dict(descent.state_dict())
    for one in (descent, other):
        one.step(torch.tensor([3, 5]), torch.full((2, DIM), 0.5))
    assert torch.equal(weight, again)
    before = descent.state_dict()["squares"].clone()
    other.step(torch.tensor([3]), torch.ones(1, DIM))  # of its own, from here on
    assert torch.equal(descent.state_dict()["squares"], before)


def test_a_new_row_can_have_the_state_of_another():
    weight = torch.zeros(ROWS, DIM)
    descent = RowDescent(weight, RowDescentConfig())
    descent.step(torch.tensor([2, 2]), torch.full((2, DIM), 3.0))
    descent.copy([2], [5])
    weight[5] = weight[2]
    descent.step(torch.tensor([2, 5]), torch.ones(2, DIM))
    assert torch.equal(weight[5], weight[2])
    RowDescent(weight, RowDescentConfig(rule="sgd")).copy([2], [5])  # has nothing to copy


def test_bytes_are_those_of_the_squares_and_the_places():
    weight = torch.zeros(ROWS, DIM)
    assert RowDescent(weight, RowDescentConfig()).nbytes == ROWS * DIM * 4 + ROWS * 4
    assert RowDescent(weight, RowDescentConfig(rule="sgd")).nbytes == ROWS * 4


def test_rows_of_another_float_type_are_refused():
    with pytest.raises(CelrecError, match="weight must be of float32, not float64"):
        RowDescent(torch.zeros(ROWS, DIM, dtype=torch.float64), RowDescentConfig())
    weight = torch.zeros(ROWS, DIM)
    descent = RowDescent(weight, RowDescentConfig())
    weight.data = torch.zeros(ROWS, DIM, dtype=torch.float16)
    with pytest.raises(CelrecError, match="weight must be of float32, not float16"):
        descent.step(torch.tensor([0]), torch.ones(1, DIM))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rule": "adam"}, "rule must be one of adagrad, sgd, not 'adam'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive, not nan"),
        ({"first_square": -1.0}, "first_square must be positive, not -1.0"),
        ({"l2": -0.1}, "l2 must not be negative, not -0.1"),
    ],
)
def test_wrong_settings_are_told(wrong, told):
    with pytest.raises(CelrecError, match=told):
        RowDescentConfig(**wrong)


@pytest.mark.parametrize("rule", RULES)
def test_rows_that_move_up_take_what_is_known_of_them_along(rule):
    how = RowDescentConfig(rule=rule, learning_rate=0.5)
    weight = nn.Parameter(torch.zeros(5, DIM))
    descent = RowDescent(weight, how)
    descent.step(torch.tensor([0, 2, 4, 4]), torch.randn(4, DIM))
    weight.data = torch.cat([weight.data, torch.ones(1, DIM)])  # since then one more has come
    rows = np.array([4, 1, 5, 2])
    kept = nn.Parameter(weight.detach()[torch.from_numpy(rows)].clone())
    squares = np.full((7, DIM), how.first_square, np.float32)
    squares[:5] = descent.squares if rule == "adagrad" else squares[:5]
    weight.data = torch.cat([kept.data.clone(), torch.zeros(1, DIM)])  # and a new one behind
    descent.keep(rows)
    assert descent.nbytes == weight.nbytes * (rule == "adagrad") + 4 * 5
    gradients = torch.randn(5, DIM)
    before = weight.detach().clone()
    descent.step(torch.arange(5), gradients)
    total = torch.from_numpy(squares[[*rows, 6]]) + gradients.square()
    scale = total.rsqrt() if rule == "adagrad" else 1
    torch.testing.assert_close(weight.detach(), before - 0.5 * gradients * scale)


def test_a_table_that_grew_is_not_held_twice_while_the_state_grows():
    tracemalloc.start()
    try:
        weight = nn.Parameter(torch.from_numpy(np.ones((100_000, 8), np.float32)))
        descent, size = RowDescent(weight, RowDescentConfig()), weight.nbytes
        weight.data = torch.from_numpy(np.ones((112_500, 8), np.float32))
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        descent.step(torch.tensor([112_499]), torch.ones(1, 8))
        more = tracemalloc.get_traced_memory()[1] - held
    finally:
        tracemalloc.stop()
    assert more < size / 2  # the new state, and the old table is gone
