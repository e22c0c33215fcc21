import json

import polars as pl
import pytest
import torch

from celrec import CelrecError, Planted, Split
from celrec.training.fit import Fit, make_model
from celrec.training.offline import Offline, Schedule
from celrec.training.offline_training import OfflineTraining
from celrec.training.plan import Plan
from celrec.training.run_folder import load_run, save_run


@pytest.fixture(scope="module")
def trained():
    planted = Planted(rows=4000, users=50, items=60, dim=3, item_clusters=4)
    split = Split.random(planted.interactions())
    plan = Plan("cel", "5", side="both", rank=8)
    model = make_model(split.train, plan)
    how = Offline(schedule=Schedule(steps=60, judge_every=20))
    training = OfflineTraining(model, split.train, split.valid, how)
    training.start()
    judgements = {"choose": training.run()}
    return split, plan, Fit(model, judgements, {"choose": training.best})


@pytest.fixture
def run(trained, tmp_path):
    split, plan, fitted = trained
    save_run(
        tmp_path / "run",
        split.train_and_valid(),
        fitted.model,
        plan,
        fitted.judgements,
        {"data": "planted"},
        {"test": {"mse": 1.0}},
    )
    return tmp_path / "run"


def test_what_is_loaded_predicts_as_what_was_saved(trained, run):
    split, plan, fitted = trained
    loaded = load_run(run)
    assert torch.equal(loaded.model.predict(split.test), fitted.model.predict(split.test))
    assert loaded.plan == plan
    assert loaded.known.user_ids.ids.equals(split.train.user_ids.ids)
    assert loaded.known.item_ids.encode(split.train.item_ids.ids).tolist() == list(range(60))
    assert (loaded.source, loaded.result) == ({"data": "planted"}, {"test": {"mse": 1.0}})


def test_tables_tell_ids_counts_and_clusters(trained, run):
    split, _, fitted = trained
    items = pl.read_parquet(run / "items.parquet")
    assert items["id"].to_list() == split.train.item_ids.ids.to_list()
    assert items["interactions"].to_list() == split.train_and_valid().item_counts.tolist()
    assert items["cluster"].to_list() == fitted.model.items.assignment[:-1].tolist()
    judgements = pl.read_parquet(run / "judgements.parquet")
    assert judgements["step"].to_list() == [j.step for j in fitted.judgements["choose"]]


def test_a_second_run_replaces_the_first(trained, run):
    split, plan, fitted = trained
    save_run(run, split.train_and_valid(), fitted.model, plan, fitted.judgements, {}, {"x": 1})
    assert load_run(run).result == {"x": 1}
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "result.json", "users.parquet", "items.parquet"]
)
def test_a_truncated_file_is_told_in_one_line(run, name):
    path = run / name
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CelrecError) as told:
        load_run(run)
    assert "\n" not in str(told.value)


def test_a_missing_file_another_format_and_a_stranger_are_told(run, tmp_path):
    with pytest.raises(CelrecError, match="not a run folder"):
        load_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": 99}))
    with pytest.raises(CelrecError, match="format 99"):
        load_run(run)
    (run / "config.json").write_text(json.dumps(config))
    (run / "model.safetensors").unlink()
    with pytest.raises(CelrecError, match="damaged run folder"):
        load_run(run)
