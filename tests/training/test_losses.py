import math

import pytest
import torch

from celrec.training.losses import LOSSES, ranking_loss


def test_losses_by_hand():
    predicted, target = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])
    assert LOSSES["squared-error"](predicted, target).tolist() == [1.0, 1.0]
    expected = [-math.log(1 / (1 + math.exp(-2))), -math.log(1 - 1 / (1 + math.exp(1)))]
    assert LOSSES["cross-entropy"](predicted, target).tolist() == pytest.approx(expected)
    assert ranking_loss(predicted, target).tolist() == pytest.approx(
        [math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))]
    )


@pytest.mark.parametrize("name", LOSSES)
def test_candidates_in_front_are_broadcast(name):
    predicted, target = torch.randn(5, 3), torch.tensor([0.0, 1.0, 1.0])
    losses = LOSSES[name](predicted, target)
    for one, row in zip(losses, predicted, strict=True):
        torch.testing.assert_close(one, LOSSES[name](row, target))
