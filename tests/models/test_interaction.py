import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.errors import CelrecError
from celrec.models.deepfm import DeepFM
from celrec.models.dien import DIEN
from celrec.models.din import DIN
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.models.interaction import History, Interaction
from celrec.models.mmoe import MMoE
from celrec.models.neumf import NeuMF
from celrec.models.registry import MODELS
from celrec.models.wide_deep import WideDeep
from tests.models import slow


class Sum(Interaction):
    """The least that a model must have."""

    def forward(self, user, item, history=None, features=None):
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


@pytest.mark.parametrize("model", [DotProduct(), BiasedDotProduct(0.3)])
def test_a_linear_model_has_a_line_for_each_partner(model):
    assert model.linear
    own, partner = torch.randn(6, 4), torch.randn(6, 4)
    constant, slope = model.line(partner)
    predicted = constant + (slope * own).sum(-1)
    torch.testing.assert_close(model(own, partner), predicted)
    torch.testing.assert_close(model(partner, own), predicted)


def test_a_network_has_no_line():
    for kind in MODELS.values():
        assert not kind(9, 0).linear
    with pytest.raises(CelrecError, match="Sum is not linear"):
        Sum().line(torch.ones(3))


HISTORY = (0, 5)
STARTERS = {
    "din": (lambda: DIN(3, 2), 0, 3),
    "dien": (lambda: DIEN(3, 2), 0, 3),
    "deepfm": (lambda: DeepFM(3, 2), 1, 3),
    "neumf": (lambda: NeuMF(5, 2, product_dim=3), 0, 3),
}


@pytest.mark.parametrize("name", STARTERS)
@given(data=st.data())
@settings(max_examples=15)
def test_it_can_begin_as_a_dot_product(name, data):
    make, extra, dims = STARTERS[name]
    model = slow.shaken(make(), data.draw(st.integers(0, 50)))
    assert model.begin_as_dot_product() == dims
    width = (5 if name == "neumf" else 3) + extra
    sample = data.draw(slow.samples(width, 2, lengths=HISTORY))
    user, item = sample.user.abs(), sample.item.abs()  # non-negative, as what is gone on from
    if extra:
        user[-extra:] = item[-extra:] = 0
    features = torch.zeros_like(sample.features)
    predicted = model(user, item, sample.history, features).item()
    assert predicted == pytest.approx(slow.dot(user[:dims].tolist(), item[:dims].tolist()))


@pytest.mark.parametrize("model", [WideDeep(3), MMoE(3)])
def test_a_model_that_cannot_begin_as_a_dot_product_stays_as_it_is(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert model.begin_as_dot_product() == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_only_one_model_wants_negatives_and_has_an_auxiliary_loss():
    wanting = [name for name, kind in MODELS.items() if kind(9, 0).wants_negatives]
    assert wanting == ["dien"]
    history = History(torch.randn(2, 4, 9), torch.ones(2, 4, dtype=torch.bool))
    for name, kind in MODELS.items():
        message = kind(9, 0).auxiliary(history, torch.randn(2, 4, 9))
        assert (message is not None) == (name in wanting)
