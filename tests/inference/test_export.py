import json
from dataclasses import replace

import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch

from celrec import CelrecError
from celrec.config.plan import Plan
from celrec.inference import export
from celrec.inference.export import check_export_place, export_run
from celrec.inference.graph_files import Scorer, read_safetensors
from celrec.inference.top_k import TopK
from celrec.runs.run_folder import load_run, save_run, trained_run
from tests.inference.small_models import HISTORY, ITEMS, USERS, small_log, small_model

PLANS = {
    "nmf": Plan("cel", "5", rank=6),
    "din": Plan("cel", "5", rank=6, model="din"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs that were written and read; ids are words and numbers that are not dense."""
    folder, log = tmp_path_factory.mktemp("runs"), small_log()
    for name, plan in PLANS.items():
        save_run(folder / name, trained_run(log, small_model(log, plan), plan, {}, {}, {}))
    return {name: load_run(folder / name, seen=True) for name in PLANS}


def numbers(table, ids):
    """As somebody else would look them up."""
    known = dict(zip(table["id"].to_list(), table["number"].to_list(), strict=True))
    return np.array([known.get(one, -1) for one in ids])


@pytest.mark.parametrize("kind", export.FORMATS)
def test_the_folder_is_all_that_is_needed_to_score(runs, kind, tmp_path):
    about = export_run(runs["nmf"], tmp_path / "out", kind)
    assert json.loads((tmp_path / "out" / "export.json").read_text()) == about
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        ["export.json", f"model.{kind}", "items.parquet", "users.parquet"]
    )
    users, items = (
        pl.read_parquet(tmp_path / "out" / about["inputs"][s]["ids"]) for s in ("user", "item")
    )
    asked = {
        "user": numbers(users, [users["id"][3], "stranger", users["id"][0]]),
        "item": numbers(items, [items["id"][7], items["id"][1], "no item"]),
    }
    assert asked["user"].tolist() == [3, -1, 0]
    file = tmp_path / "out" / about["file"]
    tensors = {name: torch.from_numpy(ids) for name, ids in asked.items()}
    if kind == "onnx":
        scores = onnxruntime.InferenceSession(file).run([about["output"]["name"]], asked)[0]
    elif kind == "pt2":
        scores = torch.export.load(file).module()(**tensors).detach().numpy()
    else:
        scores = Scorer(read_safetensors(file))(**tensors).detach().numpy()
    known = runs["nmf"].known
    log = replace(
        known,
        user=asked["user"].astype(np.int32),
        item=asked["item"].astype(np.int32),
        target=np.zeros(3, np.float32),
        columns={},
    )
    np.testing.assert_allclose(scores, runs["nmf"].model.predict(log), rtol=0, atol=1e-5)


def test_what_goes_in_and_what_comes_out_is_told(runs, tmp_path):
    about = export_run(runs["din"], tmp_path / "out", "safetensors")
    assert about["inputs"] == {
        "user": {"dtype": "int64", "shape": ["batch"], "ids": "users.parquet"},
        "item": {"dtype": "int64", "shape": ["batch"], "ids": "items.parquet"},
        "history": {
            "dtype": "int64",
            "shape": ["batch", HISTORY],
            "ids": "items.parquet",
            "no item": -1,
            "order": "latest last",
        },
        "columns": {
            "dtype": "int64",
            "shape": ["batch", 1],
            "names": ["shop"],
            "ids": ["column_0.parquet"],
        },
    }
    assert about["output"]["meaning"] == "the target that is expected"
    assert about["unseen"] == -1
    shops = pl.read_parquet(tmp_path / "out" / "column_0.parquet")
    assert sorted(shops["id"]) == [f"shop {n}" for n in range(5)]
    items = pl.read_parquet(tmp_path / "out" / "items.parquet")
    assert items["number"].to_list() == list(range(ITEMS))
    assert items["cluster"].to_list() == runs["din"].items["cluster"].to_list()


def test_the_histories_beside_a_model_give_what_is_recommended(runs, tmp_path):
    run = runs["din"]
    export_run(run, tmp_path / "out", "safetensors")
    users = pl.read_parquet(tmp_path / "out" / "users.parquet")
    histories = torch.from_numpy(users["history"].to_numpy().copy()).long()
    assert histories.shape == (USERS, HISTORY)
    scorer = Scorer(read_safetensors(tmp_path / "out" / "model.safetensors"))
    best = TopK(run.model, np.zeros(ITEMS)).recommend(np.arange(USERS), 4)
    for user in range(USERS):
        scores = scorer(
            user=torch.full((ITEMS,), user),
            item=torch.arange(ITEMS),
            history=histories[user].expand(ITEMS, -1),
            columns=torch.full((ITEMS, 1), -1),
        )
        highest = scores.detach().sort(descending=True).values[:4]
        np.testing.assert_allclose(best.scores[user], highest, rtol=0, atol=1e-5)


def test_an_export_takes_the_place_of_another_one_only(runs, tmp_path):
    out = tmp_path / "out"
    export_run(runs["din"], out, "safetensors")
    assert (out / "column_0.parquet").exists()
    about = export_run(runs["nmf"], out, "safetensors")
    assert about["model"] == "nmf"
    assert not (out / "column_0.parquet").exists()
    (tmp_path / "empty").mkdir()
    check_export_place(tmp_path / "empty")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all I have")
    (tmp_path / "file").write_text("")
    for place in ("mine", "file"):
        with pytest.raises(CelrecError, match="exists and is not an export; choose another place"):
            export_run(runs["nmf"], tmp_path / place, "safetensors")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all I have"
    with pytest.raises(CelrecError, match="needs a folder of its own"):
        check_export_place("..")


def test_a_failure_leaves_what_was_there(runs, tmp_path, monkeypatch):
    out = tmp_path / "out"
    before = export_run(runs["nmf"], out, "safetensors")

    def broken(*_):
        raise CelrecError("no room")

    monkeypatch.setattr(export, "write_safetensors", broken)
    with pytest.raises(CelrecError, match="no room"):
        export_run(runs["din"], out, "safetensors")
    assert json.loads((out / "export.json").read_text()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_formats_that_are_not_known_are_told(runs, tmp_path):
    with pytest.raises(CelrecError, match=r"format must be one of onnx, pt2, saf.*, not 'pickle'"):
        export_run(runs["nmf"], tmp_path / "out", "pickle")
    assert not (tmp_path / "out").exists()
