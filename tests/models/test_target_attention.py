import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from celrec.models.attention import TargetAttention
from celrec.models.interaction import History
from tests.models import slow

DIM = 3


@st.composite
def units(draw):
    hidden = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return slow.shaken(TargetAttention(DIM, hidden), draw(st.integers(0, 1000)))


@given(units(), slow.samples(DIM, lengths=(0, 6)))
@settings(max_examples=60)
def test_weights_are_those_of_the_four_inputs_side_by_side(unit, sample):
    weights = unit(sample.item, sample.history)
    expected = torch.zeros(len(weights), dtype=torch.float64)
    attended = slow.attention(unit, sample.item.tolist(), slow.known(sample.history))
    expected[sample.history.filled] = torch.tensor(attended, dtype=torch.float64)
    torch.testing.assert_close(weights, expected)


@given(units(), st.lists(st.lists(st.booleans(), min_size=5, max_size=5), max_size=4))
@settings(max_examples=30)
def test_weights_of_filled_places_sum_to_one_and_those_of_empty_ones_are_zero(unit, filled):
    filled = torch.tensor(filled, dtype=torch.bool).view(-1, 5)
    history = History(torch.randn(len(filled), 5, DIM).double(), filled)
    weights = unit(torch.randn(len(filled), DIM).double(), history)
    assert bool((weights[filled] > 0).all())
    assert not weights[~filled].any()
    torch.testing.assert_close(weights.sum(-1), filled.any(-1).double())


def test_equal_items_have_equal_weights():
    history = History(torch.randn(3).expand(2, 4, 3), torch.tensor([[True] * 4, [False, True] * 2]))
    weights = TargetAttention(3)(torch.randn(2, 3), history)
    torch.testing.assert_close(weights, torch.tensor([[0.25] * 4, [0, 0.5] * 2]))


def test_scores_are_divided_by_the_root_of_the_dimension():
    # A unit that says the sum of k: with keys of 0 and of x, odds of exp(4·x / √4).
    unit = TargetAttention(4, [1])
    with torch.no_grad():
        for value in unit.parameters():
            value.zero_()
        unit.first.weight[:, 4:8] = 1
        unit.rest[-1].weight.fill_(1)
    history = History(torch.tensor([[0.0] * 4, [1.5] * 4]), torch.ones(2, dtype=torch.bool))
    weights = unit(torch.randn(4), history)
    assert (weights[1] / weights[0]).item() == pytest.approx(math.exp(3), rel=1e-5)


@pytest.mark.parametrize(("lead", "lead_history"), [((4, 5), (4, 1)), ((5, 4), (4,)), ((5,), ())])
def test_each_target_attends_as_if_it_were_alone(lead, lead_history):
    unit = slow.shaken(TargetAttention(DIM))
    history = History(
        torch.randn(*lead_history, 6, DIM).double(), torch.rand(*lead_history, 6) > 0.4
    )
    targets = torch.randn(*lead, DIM).double()
    weights = unit(targets, history)
    assert weights.shape == (*lead, 6)
    for place in torch.cartesian_prod(*map(torch.arange, lead)).view(-1, len(lead)).tolist():
        own = History(slow.at(history.vectors, place, 2), slow.at(history.filled, place))
        torch.testing.assert_close(weights[tuple(place)], unit(targets[tuple(place)], own))


@pytest.mark.parametrize("lead", [(3, 1), (3, 20)])
def test_of_the_first_layer_there_is_one_product_for_every_pair_and_one_for_every_target(lead):
    unit, targets = TargetAttention(16, [5, 2]), 3 * 20
    pairs = targets * 10
    history = History(torch.randn(*lead, 10, 16), torch.ones(*lead, 10, dtype=torch.bool))
    with FlopCounterMode(display=False) as counter:
        unit(torch.randn(3, 20, 16), history)
    multiplied = pairs * (16 * 5 + 5 * 2 + 2) + targets * 16 * 5
    assert counter.get_total_flops() == 2 * multiplied


def test_the_four_inputs_are_never_made_for_every_pair():
    unit, pairs = TargetAttention(16, [2, 2]), 3 * 20 * 10
    history = History(torch.randn(3, 1, 10, 16), torch.ones(3, 1, 10, dtype=torch.bool))
    with slow.LargestTensor() as largest:
        unit(torch.randn(3, 20, 16), history)
    assert largest.size < pairs * 16
    assert largest.size == 3 * 20 * 2 * 16  # each target with the weights of the products


def test_its_layers_have_the_widths_of_the_paper():
    linear = slow.layers(TargetAttention(8), torch.nn.Linear)
    widths = [(layer.in_features, layer.out_features) for layer in linear]
    assert widths == [(4 * 8, 16), (16, 8), (8, 1)]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=30)
def test_targets_for_all_histories_are_compared_with_the_rows_of_the_table(
    candidates, batch, length, seed
):
    torch.manual_seed(seed)
    attention = slow.shaken(TargetAttention(3), seed)
    rows, row = torch.randn(4, 3).double(), torch.randint(4, (batch, length))
    filled = torch.rand(batch, length) > 0.3
    targets = torch.randn(candidates, 1, 3).double()
    by_row = attention(targets, History(rows[row], filled, rows, row))
    assert by_row.shape == (candidates, batch, length)
    torch.testing.assert_close(by_row, attention(targets, History(rows[row], filled)))


def test_rows_are_scored_once_where_the_targets_are_the_same_for_all_histories():
    attention, scored = TargetAttention(3), []
    plain = attention.scores
    attention.scores = lambda target, keys: scored.append(keys.shape) or plain(target, keys)
    rows, row = torch.randn(4, 3), torch.randint(4, (7, 5))
    history = History(rows[row], torch.ones(7, 5, dtype=torch.bool), rows, row)
    attention(torch.randn(6, 1, 3), history)
    attention(torch.randn(6, 7, 3), history)
    assert scored == [(4, 3), (7, 5, 3)]


@st.composite
def pairs_of_few_rows(draw):
    """A unit, and a history whose targets come from the same few rows."""
    number, batch, length = (draw(st.integers(1, most)) for most in (3, 5, 6))
    torch.manual_seed(draw(st.integers(0, 99)))
    rows = torch.randn(number, DIM).double().requires_grad_()
    # So many samples that there are fewer pairs of rows than places.
    row = torch.randint(number, (3 * number**2 * batch, length))
    filled = torch.rand(row.shape) > 0.3
    return draw(units()), History(None, filled, rows, row, torch.randint(number, row.shape[:1]))


@given(pairs_of_few_rows())
@settings(max_examples=40)
def test_interest_by_rows_is_that_by_places_and_so_are_its_gradients(case):
    unit, history = case
    target = history.rows.index_select(0, history.target)
    found, expected = (
        unit.interest(target, given)
        for given in (history, History(history.vectors, history.filled))
    )
    torch.testing.assert_close(found, expected)
    wanted = [history.rows, *unit.parameters()]
    slopes, by_places = (
        torch.autograd.grad(one.square().sum(), wanted, retain_graph=True)
        for one in (found, expected)
    )
    torch.testing.assert_close(slopes, by_places)


@pytest.mark.parametrize(("number", "scored"), [(4, [(4, 3)]), (5, [])])
def test_few_rows_are_scored_once_where_targets_are_rows_too(number, scored):
    attention, requested = TargetAttention(3), []
    plain = attention.scores
    attention.scores = lambda target, keys: requested.append(keys.shape) or plain(target, keys)
    rows, row = torch.randn(number, 3), torch.randint(number, (12, 5))  # 60 places
    target = torch.randint(number, (12,))
    history = History(None, torch.ones(12, 5, dtype=torch.bool), rows, row, target)
    interest = attention.interest(rows[target], history)
    assert requested == scored
    torch.testing.assert_close(
        interest, attention.interest(rows[target], history._replace(target=None))
    )


def test_candidates_that_share_histories_have_interests_of_their_own():
    attention, rows, row = TargetAttention(3), torch.randn(2, 3), torch.randint(2, (12, 5))
    target = torch.randint(2, (4, 12))  # four candidates for each history
    history = History(None, torch.ones(12, 5, dtype=torch.bool), rows, row, target)
    interest = attention.interest(rows[target], history)
    assert interest.shape == (4, 12, 3)
    for found, candidates in zip(interest, target, strict=True):
        alone = history._replace(target=None)
        torch.testing.assert_close(found, attention.interest(rows[candidates], alone))
