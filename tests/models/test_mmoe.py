import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.models.mmoe import MMoE
from tests.models import slow


def by_hand(model, sample):
    """tower_t(Σ_i g_ti·ReLU(W_i·x)) of each task, in plain numbers."""
    features = [] if sample.features is None else sample.features.tolist()
    x = slow.joined([sample.user.tolist(), sample.item.tolist(), *features])
    flat = slow.relu(slow.linear(model.expert.linear, x))
    width = len(flat) // model.experts
    experts = [flat[i * width :][:width] for i in range(model.experts)]
    logits = slow.linear(model.gate.linear, x)
    predicted = []
    for t, tower in enumerate(model.towers):
        gates = slow.softmax(logits[t * model.experts :][: model.experts])
        mixed = [sum(g * e[n] for g, e in zip(gates, experts, strict=True)) for n in range(width)]
        predicted.append(slow.tower(tower, mixed))
    return predicted


@given(st.integers(1, 3), st.integers(0, 2), st.data())
@settings(max_examples=50)
def test_every_task_mixes_the_experts_by_its_own_gate(dim, fields, data):
    few = st.integers(1, 3)
    sizes = {name: data.draw(few) for name in ("tasks", "experts", "width")}
    hidden = data.draw(st.lists(few, min_size=1, max_size=2))
    model = slow.shaken(MMoE(dim, fields, hidden=hidden, **sizes))
    sample = data.draw(slow.samples(dim, fields))
    predicted = model(*sample)
    assert predicted.shape == (sizes["tasks"],)
    assert predicted.tolist() == pytest.approx(by_hand(model, sample))


def test_a_single_expert_makes_gates_idle():
    model, (user, item) = MMoE(4, experts=1), torch.randn(2, 5, 4)
    before = model(user, item)
    torch.nn.init.normal_(model.gate.linear.weight)
    torch.testing.assert_close(model(user, item), before)


def test_the_loss_of_one_task_trains_the_experts_but_no_other_gate_or_tower():
    model, (user, item) = slow.shaken(MMoE(4, tasks=3)), torch.randn(2, 5, 4).double()
    model(user, item)[:, 1].sum().backward()
    assert model.expert.linear.weight.grad.any()
    gates = model.gate.linear.weight.grad.unflatten(0, (3, 4))
    assert [bool(gate.any()) for gate in gates] == [False, True, False]
    trained = [
        any(p.grad is not None and p.grad.any() for p in t.parameters()) for t in model.towers
    ]
    assert trained == [False, True, False]


def test_its_layers_have_the_widths_of_the_paper():
    linear = slow.layers(MMoE(8, 1), torch.nn.Linear)
    widths = [(layer.in_features, layer.out_features) for layer in linear]
    assert widths == [(24, 4 * 16), (24, 2 * 4), *[(16, 8), (8, 1)] * 2]


def test_the_mean_is_that_of_the_first_task():
    model, zero = MMoE(3), torch.zeros(3)
    before = model(zero, zero)[1]
    model.set_mean(100.0)
    assert model(zero, zero)[0].item() == pytest.approx(100, abs=2)
    assert model(zero, zero)[1] == before
