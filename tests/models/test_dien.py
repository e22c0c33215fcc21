import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.models.dien import DIEN
from celrec.models.interaction import History
from tests.models import slow


def thirds(vector):
    dim = len(vector) // 3
    return vector[:dim], vector[dim : 2 * dim], vector[2 * dim :]


def gru(reader, vectors):
    """The states of a GRU: r, z = σ(…), n = tanh(Wx + b + r·(Uh + c)), h = (1 − z)·n + z·h."""
    dim, states = reader.hidden_size, []
    weights = [value.tolist() for value in reader.parameters()]
    of_input, of_state, constant, constant_of_state = weights
    state = [0.0] * dim
    for vector in vectors:
        x = thirds([slow.dot(row, vector) + c for row, c in zip(of_input, constant, strict=True)])
        h = [slow.dot(row, state) + c for row, c in zip(of_state, constant_of_state, strict=True)]
        h = thirds(h)
        reset = slow.sigmoid([a + b for a, b in zip(x[0], h[0], strict=True)])
        keep = slow.sigmoid([a + b for a, b in zip(x[1], h[1], strict=True)])
        new = [math.tanh(x[2][d] + reset[d] * h[2][d]) for d in range(dim)]
        state = [(1 - keep[d]) * new[d] + keep[d] * state[d] for d in range(dim)]
        states.append(state)
    return states


def augru(model, states, weights, dim):
    """u′ = α·u, h = (1 − u′)·h + u′·c, step by step."""
    h = [0.0] * dim
    for state, weight in zip(states, weights, strict=True):
        update_in, reset_in, new_in = thirds(slow.linear(model.inputs, state))
        gates = slow.linear(model.gates, h)
        update = slow.sigmoid([a + b for a, b in zip(update_in, gates[:dim], strict=True)])
        reset = slow.sigmoid([a + b for a, b in zip(reset_in, gates[dim:], strict=True)])
        recurrent = slow.linear(model.candidate, [r * x for r, x in zip(reset, h, strict=True)])
        new = [math.tanh(a + b) for a, b in zip(new_in, recurrent, strict=True)]
        scaled = [weight * u for u in update]
        h = [(1 - scaled[d]) * h[d] + scaled[d] * new[d] for d in range(dim)]
    return h


def by_hand(model, sample):
    """MLP(user, target, evolved interest, Σ history, features), in plain numbers."""
    features = [] if sample.features is None else sample.features.tolist()
    user, item, vectors = sample.user.tolist(), sample.item.tolist(), slow.known(sample.history)
    states = gru(model.reader, vectors)
    evolved = augru(model, states, slow.attention(model.attention, item, states), len(item))
    total = [sum(vector[d] for vector in vectors) for d in range(len(item))]
    product = slow.times(user, item)
    return slow.tower(model.tower, slow.joined([user, item, evolved, product, total, *features]))


@given(st.integers(1, 4), st.integers(0, 2), st.data())
@settings(max_examples=60)
def test_it_is_a_network_on_the_interest_that_evolved_step_by_step(dim, fields, data):
    few = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    model = slow.shaken(DIEN(dim, fields, hidden=data.draw(few), attention=data.draw(few)))
    sample = data.draw(slow.samples(dim, fields, lengths=(0, 6)))
    assert model(*sample).item() == pytest.approx(by_hand(model, sample))


@given(slow.samples(3, lengths=(0, 6)))
@settings(max_examples=40)
def test_it_reads_what_is_filled_and_skips_the_rest(sample):
    model, history = slow.shaken(DIEN(3)), sample.history
    states = model.read(history)
    assert states.shape == history.vectors.shape
    expected = gru(model.reader, slow.known(history))
    expected = torch.tensor(expected, dtype=torch.float64).view(-1, 3)
    torch.testing.assert_close(states[history.filled], expected)


def test_no_number_in_an_empty_place_overflows_a_state():
    model = DIEN(2)
    with torch.no_grad():
        model.reader.weight_ih_l0[:] = torch.tensor([2.0, -2.0])  # ∞ − ∞, were it read
    history = History(torch.full((3, 2), 3e38), torch.zeros(3, dtype=torch.bool))
    assert model.read(history).isfinite().all()
    assert model(torch.randn(2), torch.randn(2), history).isfinite()


@pytest.mark.parametrize("lead", [(), (1,), (4,), (4, 1), (2, 3), (0,), (0, 1)])
def test_histories_are_read_one_by_one(lead):
    model = slow.shaken(DIEN(3))
    history = History(torch.randn(*lead, 5, 3).double(), torch.rand(*lead, 5) > 0.4)
    states = model.read(history)
    assert states.shape == (*lead, 5, 3)
    flat = History(history.vectors.view(-1, 5, 3), history.filled.view(-1, 5))
    for n, own in enumerate(states.view(-1, 5, 3)):
        torch.testing.assert_close(own, model.read(History(flat.vectors[n], flat.filled[n])))


def test_the_order_of_the_history_matters():
    model = slow.shaken(DIEN(3))
    user, item, vectors = (torch.randn(*shape).double() for shape in [(3,), (3,), (6, 3)])
    filled = torch.ones(6, dtype=torch.bool)
    before = model(user, item, History(vectors, filled))
    after = model(user, item, History(vectors.flip(0), filled))
    assert (after - before).abs() > 1e-6


def test_a_history_is_read_once_for_all_candidates():
    model, read = DIEN(3), []
    model.reader.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].shape))
    history = History(torch.randn(4, 1, 5, 3), torch.ones(4, 1, 5, dtype=torch.bool))
    assert model(torch.randn(4, 1, 3), torch.randn(4, 7, 3), history).shape == (4, 7)
    assert read == [(4, 5, 3)]


def test_whether_an_item_comes_next_is_reported_by_the_auxiliary_network():
    model = slow.shaken(DIEN(3))
    states, items = torch.randn(2, 5, 3).double(), torch.randn(2, 5, 3).double()
    scores = model.next_item_score(states, items)
    assert scores.shape == (2, 5)
    for n in range(2):
        for place in range(5):
            both = states[n, place].tolist() + items[n, place].tolist()
            assert scores[n, place].item() == pytest.approx(slow.tower(model.next_item, both))


def test_the_auxiliary_network_takes_no_part_in_predictions():
    model = DIEN(3)
    history = History(torch.randn(4, 5, 3), torch.ones(4, 5, dtype=torch.bool))
    model(torch.randn(4, 3), torch.randn(4, 3), history).sum().backward()
    untrained = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is None}
    assert untrained == {"next_item"}


def test_its_layers_have_the_widths_of_the_paper():
    model = DIEN(8, 2)
    for part, first in ((model.attention, 32), (model.tower, 56), (model.next_item, 16)):
        linear = slow.layers(part, torch.nn.Linear)
        widths = [(layer.in_features, layer.out_features) for layer in linear]
        assert widths == [(first, 16), (16, 8), (8, 1)]
    assert (model.reader.input_size, model.reader.hidden_size, model.reader.num_layers) == (8, 8, 1)


def test_each_network_has_the_widths_that_were_asked_for_it():
    model = DIEN(3, hidden=[2, 5], attention=[4], auxiliary=[6, 1, 7])
    widths = {}
    for name in ("tower", "attention", "next_item"):
        *hidden, _ = slow.layers(getattr(model, name), torch.nn.Linear)
        widths[name] = [layer.out_features for layer in hidden]
    assert widths == {"tower": [2, 5], "attention": [4], "next_item": [6, 1, 7]}


def auxiliary_by_hand(model, histories, not_next):
    """The mean over all places that are filled, and were so before, in a loop."""
    losses = []
    for vectors, filled, others in zip(*histories[:2], not_next, strict=True):
        states = model.read(History(vectors, filled))
        for place in range(len(filled) - 1):
            if filled[place] and filled[place + 1]:
                state = states[place].tolist()
                came = slow.tower(model.next_item, state + vectors[place + 1].tolist())
                other = slow.tower(model.next_item, state + others[place + 1].tolist())
                losses.append(math.log(1 + math.exp(-came)) + math.log(1 + math.exp(other)))
    return sum(losses) / max(len(losses), 1)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 5), st.integers(0, 50))
@settings(max_examples=30)
def test_the_auxiliary_loss_is_that_of_a_loop_over_places(dim, batch, length, seed):
    rng = torch.Generator().manual_seed(seed)
    model = slow.shaken(DIEN(dim), seed)
    vectors, others = torch.randn(2, batch, length, dim, generator=rng, dtype=torch.float64)
    filled = torch.rand(batch, length, generator=rng) > 0.3
    history = History(vectors, filled)
    expected = auxiliary_by_hand(model, history, others)
    assert model.auxiliary(history, others).item() == pytest.approx(expected)


def test_the_auxiliary_loss_reaches_the_reader_and_the_tower_above_it():
    model = DIEN(3)
    vectors = torch.randn(4, 5, 3, requires_grad=True)
    history = History(vectors, torch.ones(4, 5, dtype=torch.bool))
    model.auxiliary(history, torch.randn(4, 5, 3)).backward()
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {"reader", "next_item"}
    assert vectors.grad.abs().sum() > 0
