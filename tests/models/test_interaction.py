import pytest
import torch

from celrec.models.interaction import Interaction


class Sum(Interaction):
    """The least that a model must have."""

    def forward(self, user, item, history=None, features=None):  # noqa: ARG002
        return user.sum(-1) + item.sum(-1)


def test_a_model_must_say_how_it_predicts():
    with pytest.raises(TypeError, match="forward"):
        Interaction()


def test_a_model_has_no_further_columns_unless_it_says_so():
    assert Interaction.extra_columns == 0
    assert Sum.extra_columns == 0


def test_a_model_without_a_place_for_the_mean_goes_on_as_before():
    model, user, item = Sum(), torch.randn(5, 3), torch.randn(5, 3)
    before = model(user, item)
    model.set_mean(3.5)
    assert torch.equal(model(user, item), before)
