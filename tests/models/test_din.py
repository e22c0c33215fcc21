import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.models.din import DIN
from celrec.models.interaction import History
from tests.models import slow


def by_hand(model, sample):
    """MLP(user, target, Σ_k α_k·k, features), in plain numbers."""
    features = [] if sample.features is None else sample.features.tolist()
    user, item, keys = sample.user.tolist(), sample.item.tolist(), slow.known(sample.history)
    weights = slow.attention(model.attention, item, keys)
    interest = [sum(a * k[d] for a, k in zip(weights, keys, strict=True)) for d in range(len(item))]
    products = [slow.times(user, item), slow.times(interest, item)]
    return slow.tower(model.tower, slow.joined([user, item, interest, *products, *features]))


@given(st.integers(1, 4), st.integers(0, 2), st.data())
@settings(max_examples=60)
def test_it_is_a_network_on_the_history_as_the_target_weights_it(dim, fields, data):
    few = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    model = DIN(dim, fields, hidden=data.draw(few), attention=data.draw(few))
    sample = data.draw(slow.samples(dim, fields, lengths=(0, 6)))
    assert slow.shaken(model)(*sample).item() == pytest.approx(by_hand(model, sample))


@given(st.permutations(range(6)), st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=30)
def test_the_order_of_the_history_does_not_matter(order, filled):
    model, filled = slow.shaken(DIN(3)), torch.tensor(filled)
    user, item, vectors = (torch.randn(*shape).double() for shape in [(3,), (3,), (6, 3)])
    before = model(user, item, History(vectors, filled))
    after = model(user, item, History(vectors[order], filled[order]))
    torch.testing.assert_close(after, before)


def test_with_equal_items_it_does_not_matter_how_many_there_are():
    model, (user, item, one) = slow.shaken(DIN(3)), torch.randn(3, 3).double()
    history = [History(one.expand(n, 3), torch.ones(n, dtype=torch.bool)) for n in (1, 4)]
    torch.testing.assert_close(model(user, item, history[0]), model(user, item, history[1]))


def test_its_layers_have_the_widths_of_the_paper():
    model = DIN(8, 2)
    for part, first in ((model.attention, 4 * 8), (model.tower, 7 * 8)):
        linear = slow.layers(part, torch.nn.Linear)
        widths = [(layer.in_features, layer.out_features) for layer in linear]
        assert widths == [(first, 16), (16, 8), (8, 1)]


def test_no_history_is_copied_for_every_candidate():
    users, candidates, length, dim = 3, 20, 10, 16
    model = DIN(dim, hidden=[2], attention=[2])
    history = History(
        torch.randn(users, 1, length, dim), torch.ones(users, 1, length, dtype=torch.bool)
    )
    with slow.LargestTensor() as largest:
        model(torch.randn(users, 1, dim), torch.randn(users, candidates, dim), history)
    assert largest.size < users * candidates * length * dim
