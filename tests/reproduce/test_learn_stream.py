import json

import numpy as np
import pytest
import torch

from celrec.config.plan import Plan
from celrec.online.make_trainer import (
    initialise_tables,
    make_trainer,
    online_settings,
    stream_model,
)
from celrec.recommender.batch import Batch
from reproduce import learn_stream as module
from reproduce.conversion_stream import ConversionStream
from reproduce.learn_stream import _Seen, learn_stream

STREAM = ConversionStream(4000, 300, 200, user_clusters=4, item_clusters=4, late=0.5, vectors=1.0)


def plan(embedding, preset="online", rate=1.0):
    return Plan(
        embedding=embedding,
        preset=preset,
        compression="6",
        side="both",
        model="mf",
        rank=3,
        loss="cross-entropy",
        rate=rate,
    )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 100)


def slow_area(pairs):
    """How often a conversion is predicted higher than an event that is none."""
    ones = [score for score, target in pairs if target]
    zeros = [score for score, target in pairs if not target]
    wins = [(a > b) + 0.5 * (a == b) for a in ones for b in zeros]
    return 100 * sum(wins) / len(wins)


@pytest.mark.parametrize(
    "how",
    [plan("modulo"), plan("full"), plan("cel-lite", "default"), plan("cel-lite", "hard")],
    ids=["modulo", "full", "mixtures", "clusters"],
)
def test_areas_are_those_of_the_last_tenth_predicted_before_it_is_learned(how):
    found = learn_stream(STREAM, how)
    model, settings = stream_model(how, ()), online_settings(how)
    trainer = make_trainer(settings, model)
    everything = next(STREAM.batches(4000))
    initialise_tables(settings, model, float(everything.target[:100].mean()))
    for side in trainer.sides.values():
        side.begin()
    users, items, judged = {}, {}, []
    for start in range(0, 4000, 100):
        batch = Batch(*(one[start : start + 100] for one in everything[:3]))
        pairs = list(zip(batch.user.tolist(), batch.item.tolist(), strict=True))
        cold = [min(users.get(u, 0), items.get(i, 0)) <= 5 for u, i in pairs]
        for u, i in pairs:
            users[u], items[i] = users.get(u, 0) + 1, items.get(i, 0) + 1
        scores = model.loss.prediction(trainer.step(batch)).tolist()
        if start >= 3600:
            judged += zip(scores, batch.target.tolist(), cold, strict=True)
    assert found["judged"] == len(judged) == 400
    assert found["auc"] == pytest.approx(slow_area([one[:2] for one in judged]))
    assert found["auc_cold"] == pytest.approx(slow_area([one[:2] for one in judged if one[2]]))
    assert found["cold_events"] == sum(one[2] for one in judged)
    assert found["ids"] == [len(users), len(items)]
    assert found["beside"] == trainer.nbytes


def test_what_is_found_is_json_and_tells_bytes_and_time():
    found = learn_stream(STREAM, plan("full"))
    assert json.loads(json.dumps(found)) == found
    assert found["rows"] == found["ids"]
    assert sum(found["ids"]) * 4 * 4 <= found["table"] == found["training"]
    assert found["index"] == 0
    assert found["events"] == STREAM.events
    assert found["seconds"] > 0
    assert found["peak"] is None or found["peak"] > found["table"]
    mixed = learn_stream(STREAM, plan("cel-lite", "default"))
    assert mixed["rows"] == [6, 6]
    assert mixed["index"] >= 6 * sum(mixed["ids"])


def test_what_diverges_is_told():
    assert "diverged" in learn_stream(STREAM, plan("modulo", rate=1e38))
    assert set(learn_stream(STREAM, plan("modulo", rate=1e38))) == {"diverged", "peak"}


def test_events_are_counted_before_each_batch_up_to_a_byte():
    seen = _Seen(3)
    assert seen.before(torch.tensor([1, 1, 0])).tolist() == [0, 0, 0]
    assert seen.before(torch.tensor([1, 0])).tolist() == [2, 1]
    assert seen.ids == 2
    seen.before(torch.ones(300, dtype=torch.int64))
    assert seen.before(torch.tensor([1, 2])).tolist() == [255, 0]
    assert seen.before(torch.tensor([1])).dtype == np.int64
