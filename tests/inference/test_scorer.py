from dataclasses import replace

import pytest
import torch

from celrec.config.plan import Plan
from celrec.embeddings.registry import METHODS
from celrec.inference.graph_files import Scorer
from celrec.models.registry import MODELS
from tests.inference.small_models import HISTORY, events, questions, small_log, small_model

OF_ROWS = {name for name, method in METHODS.items() if not method.budget_only}


@pytest.fixture(scope="module")
def log():
    return small_log()


def asked(model, some):
    """What `predict` would tell the model of these events, by name."""
    batch = model.batch(some, slice(None), own=False)
    known = {"user": batch.user, "item": batch.item}
    known |= {} if batch.history is None else {"history": batch.history}
    return known | ({} if batch.columns is None else {"columns": batch.columns})


@pytest.mark.parametrize("model", ["nmf", "mf"])
@pytest.mark.parametrize("embedding", sorted(OF_ROWS - {"hashgnn"}))
def test_factorisations_score_as_they_predict_whoever_is_unseen(log, embedding, model):
    if model == "mf" and METHODS[embedding].tree:
        pytest.skip("knows no biases")
    log = replace(log, columns={})
    trained, some = small_model(log, Plan(embedding, "5", rank=6, model=model)), events(log)
    scores = Scorer(trained)(torch.tensor(some.user).long(), torch.tensor(some.item).long())
    assert torch.equal(scores, trained.predict(some))
    assert scores.isfinite().all()


@pytest.mark.parametrize("loss", ["squared-error", "cross-entropy", "ranking"])
@pytest.mark.parametrize("model", MODELS)
def test_networks_score_as_they_predict_whoever_is_unseen(log, model, loss):
    if model == "mmoe" and loss != "squared-error":
        pytest.skip("has a loss of its own")
    positive = 3.0 if model == "mmoe" or loss == "ranking" else None
    plan = Plan("cel", "5", rank=12, model=model, loss=loss, positive=positive)
    trained, some = small_model(log, plan), events(log)
    inputs = asked(trained, some)
    scorer = Scorer(trained)
    assert {name: ids.shape[1:] for name, ids in scorer.example(4).items()} == {
        name: ids.shape[1:] for name, ids in inputs.items()
    }
    scores = scorer(**inputs)
    assert scores.shape == (60,)
    assert torch.equal(scores, trained.predict(some))
    if loss == "cross-entropy":
        assert ((scores > 0) & (scores < 1)).all()


def test_what_a_model_wants_to_know_is_told_by_examples(log):
    din = Scorer(small_model(log, Plan("cel", "5", rank=12, model="din")))
    assert {name: tuple(ids.shape) for name, ids in din.example(4).items()} == {
        "user": (4,),
        "item": (4,),
        "history": (4, HISTORY),
        "columns": (4, 1),
    }
    assert all(ids.dtype == torch.int64 for ids in din.example(2).values())
    nmf = Scorer(small_model(log, Plan("cel", "5", rank=6)))
    assert list(nmf.example(2)) == ["user", "item"]


def test_each_input_matters(log):
    scorer = Scorer(small_model(log, Plan("cel", "5", rank=12, model="din")))
    inputs = questions(scorer, 7)
    before = scorer(**inputs)
    for name, ids in inputs.items():
        assert not torch.equal(scorer(**{**inputs, name: (ids + 3) % 5}), before)


def test_a_scorer_does_not_draw_what_training_draws(log):
    trained = small_model(log, Plan("cel", "5", rank=12, model="deepfm")).train()
    trained.deviations["items"] = torch.ones(5, 12, 12)
    inputs = questions(Scorer(trained), 7)
    assert torch.equal(Scorer(trained)(**inputs), Scorer(trained)(**inputs))
