from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from celrec import Planted, Split
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.evaluation.comparison import measure
from celrec.evaluation.metrics import Accuracy
from celrec.recommender.negatives import Negatives
from tests.evaluation.test_metrics import slow_area

KEYS = ["mse", "mse_cold", "mse_warm", "auc", "auc_cold"]


@pytest.fixture(scope="module")
def split():
    return Split.random(Planted(300, 20, 60, dim=2, item_clusters=3).interactions())


def model_of(split, plan):
    made = make_model(split.train, plan)
    if plan.network:
        made.remember(split.train)
    return made


@pytest.mark.parametrize("model", ["nmf", "mf", "din"])
def test_ratings_are_measured_by_their_errors(split, model):
    plan = Plan("full", rank=3, model=model)
    made, counts = model_of(split, plan), split.train.item_counts
    found = measure(made, plan, split.test, counts)
    assert found == asdict(Accuracy.of(made.predict(split.test), split.test, counts))
    assert list(found) == KEYS
    assert found["auc"] is None


def test_a_ranking_is_measured_by_how_often_the_right_item_wins(split):
    plan = Plan("full", rank=3, model="din", loss="ranking", seed=4)
    made, counts = model_of(split, plan), split.train.item_counts
    found = measure(made, plan, split.test, counts)
    assert list(found) == KEYS
    assert found["mse"] is found["mse_cold"] is found["mse_warm"] is None
    both = Negatives(split.test).beside(split.test, 4)
    predicted = made.predict(both).tolist()
    assert found["auc"] == pytest.approx(slow_area(predicted, both.target.tolist()))
    known = set(zip(split.test.user.tolist(), split.test.item.tolist(), strict=True))
    others = both[len(split.test) :]
    assert not known & set(zip(others.user.tolist(), others.item.tolist(), strict=True))
    assert measure(made, plan, split.test, counts) == found
    other = measure(made, replace(plan, seed=5), split.test, counts)
    assert other["auc"] != found["auc"]


def test_a_ranking_that_knows_the_answer_is_perfect(split):
    plan = Plan("full", rank=3, model="din", loss="ranking")
    made = model_of(split, plan)
    known = set(zip(split.test.user.tolist(), split.test.item.tolist(), strict=True))

    def knowing(log):
        pairs = zip(log.user.tolist(), log.item.tolist(), strict=True)
        return torch.tensor([float(pair in known) for pair in pairs])

    made.predict = knowing
    assert measure(made, plan, split.test, split.train.item_counts)["auc"] == 1.0


def test_conversions_have_an_area_of_their_own(split):
    plan = Plan("full", rank=3, model="mmoe", positive=3.0)
    made, counts = model_of(split, plan), split.train.item_counts
    found = measure(made, plan, split.test, counts)
    assert list(found) == [*KEYS, "conversion_auc"]
    converted = split.test.target >= 3.0
    assert 0 < converted.mean() < 1
    outputs = made.outputs(split.test)
    expected = slow_area(outputs[:, 1].tolist(), converted.tolist())
    assert found["conversion_auc"] == pytest.approx(expected)
    squares = (outputs[:, 0].numpy() - split.test.target) ** 2
    assert found["mse"] == pytest.approx(float(np.mean(squares)), rel=1e-5)
    for positive in (-1e9, 1e9):  # all of them, or none
        found = measure(made, replace(plan, positive=positive), split.test, counts)
        assert found["conversion_auc"] is None


@pytest.mark.parametrize("how", [{"model": "din", "loss": "ranking"}, {"model": "nmf"}])
def test_without_rows_there_is_nothing_to_say(split, how):
    plan = Plan("full", rank=3, **how)
    found = measure(model_of(split, plan), plan, split.test[:0], split.train.item_counts)
    assert found == dict.fromkeys(KEYS)
