import math

import pytest
import torch

from celrec.models.interaction import LOSSES, rating_and_conversion


def test_losses_by_hand():
    output, target = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])
    assert LOSSES["squared-error"].of_samples(output, target).tolist() == [1.0, 1.0]
    expected = [-math.log(1 / (1 + math.exp(-2))), -math.log(1 - 1 / (1 + math.exp(1)))]
    found = LOSSES["cross-entropy"].of_samples(output, target).tolist()
    assert found == pytest.approx(expected)
    found = LOSSES["ranking"].of_samples(output, target).tolist()
    assert found == pytest.approx([math.log(1 + math.exp(-2)), math.log(1 + math.exp(1))])


def test_two_tasks_are_summed_and_the_rating_is_predicted():
    loss = rating_and_conversion(4.0)
    outputs = torch.tensor([[3.0, 2.0], [5.0, -1.0]])
    target = torch.tensor([4.0, 3.5])
    expected = [1 - math.log(1 / (1 + math.exp(-2))), 2.25 - math.log(1 - 1 / (1 + math.exp(1)))]
    assert loss.of_samples(outputs, target).tolist() == pytest.approx(expected)
    assert loss.prediction(outputs).tolist() == [3.0, 5.0]


@pytest.mark.parametrize("name", LOSSES)
def test_candidates_in_front_are_broadcast(name):
    output, target = torch.randn(5, 3), torch.tensor([0.0, 1.0, 1.0])
    losses = LOSSES[name].of_samples(output, target)
    for one, row in zip(losses, output, strict=True):
        torch.testing.assert_close(one, LOSSES[name].of_samples(row, target))


def test_candidates_in_front_are_broadcast_for_two_tasks():
    loss, outputs = rating_and_conversion(0.5), torch.randn(5, 3, 2)
    target = torch.tensor([0.0, 1.0, 1.0])
    losses = loss.of_samples(outputs, target)
    for one, row in zip(losses, outputs, strict=True):
        torch.testing.assert_close(one, loss.of_samples(row, target))


@pytest.mark.parametrize("name", ["squared-error", "cross-entropy"])
def test_the_output_for_a_mean_is_the_constant_that_costs_least(name):
    loss, target = LOSSES[name], torch.tensor([0.0, 1.0, 1.0, 1.0])
    best = loss.output(0.75)
    costs = [
        float(loss.of_samples(torch.full((4,), value), target).sum())
        for value in (best, best - 0.01, best + 0.01)
    ]
    assert costs[0] == min(costs)
    prediction = loss.prediction(torch.tensor(best))
    assert float(prediction) == pytest.approx(0.75)


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_targets_that_are_all_equal_have_a_finite_logit(mean):
    assert math.isfinite(LOSSES["cross-entropy"].output(mean))
