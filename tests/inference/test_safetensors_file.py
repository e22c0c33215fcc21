import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from celrec import CelrecError
from celrec.config.plan import Plan
from celrec.embeddings.registry import METHODS
from celrec.inference.graph_files import Scorer, read_safetensors, write_safetensors
from celrec.models.registry import MODELS
from tests.inference.small_models import questions, small_log, small_model

OF_ROWS = {name for name, method in METHODS.items() if not method.budget_only}


@pytest.fixture(scope="module")
def log():
    return small_log()


def check(model, plan, path):
    write_safetensors(path, model, plan, '{"who": "me"}')
    back = Scorer(read_safetensors(path))
    asked = questions(back, 50)
    assert torch.equal(back(**asked), Scorer(model)(**asked))
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["celrec"]) == {"who": "me"}


@pytest.mark.parametrize("embedding", sorted(OF_ROWS - {"hashgnn"}))
def test_all_tables_come_back_from_the_file_alone(log, embedding, tmp_path):
    plan = Plan(embedding, "5", rank=6)
    check(small_model(log, plan), plan, tmp_path / "model.safetensors")


@pytest.mark.parametrize("model", MODELS)
def test_all_networks_come_back_from_the_file_alone(log, model, tmp_path):
    plan = Plan("cel", "5", rank=12, model=model, positive=3.0 if model == "mmoe" else None)
    check(small_model(log, plan), plan, tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("plan", "how"),
    [
        (Plan("cel", "5", rank=6, model="mf"), {"personalised": True}),
        (Plan("cel-int8", "5", rank=6), {"packed": True}),
        (Plan("cel-lite", "5", rank=6, personalise="3"), {}),
        (Plan("cel", "5", rank=6, model="mf", side="both"), {"levels": 3}),
        (Plan("cel", "5", rank=6, model="deepfm"), {"levels": 2}),
    ],
)
def test_tables_that_training_made_come_back_too(log, plan, how, tmp_path):
    check(small_model(log, plan, **how), plan, tmp_path / "model.safetensors")


def test_other_files_are_told_of_in_one_line(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(CelrecError, match="no such file"):
        read_safetensors(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CelrecError, match="not a model that celrec exported"):
        read_safetensors(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(CelrecError, match="not a model that celrec exported"):
        read_safetensors(path)
