import json
from dataclasses import replace

import pytest

from celrec import Planted
from celrec.cli.main import main
from celrec.training.offline import Schedule
from celrec.training.presets import PRESETS
from celrec.training.run_folder import load_run


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    schedule = Schedule(steps=100, split_every=5, judge_every=20)
    quick = replace(PRESETS["nmf"]["default"], schedule=schedule)
    monkeypatch.setitem(PRESETS["nmf"], "default", quick)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    planted = Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(path)
    return str(path)


def trained(capsys, *words):
    assert main(["train", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_tells_errors_clusters_bytes_and_seconds(capsys, log):
    result = trained(capsys, log, "--compression", "4", "--rank", "8", "--fold", "1/5")
    assert result["clusters"] == 4
    assert result["bytes"]["table"] == 4 * 8 * 4
    assert result["bytes"]["index"] == 51
    assert result["test"]["mse"] > 0
    assert set(result["test"]) == {"mse", "mse_cold", "mse_warm"}
    assert result["valid"]["mse"] > 0
    assert result["seconds"] > 0


@pytest.mark.parametrize("embedding", ["cel", "modulo", "full"])
def test_every_method_has_the_same_keys(capsys, log, embedding):
    result = trained(capsys, log, "--embedding", embedding, "--rank", "4")
    assert {"test", "valid", "clusters", "bytes", "seconds"} <= set(result)


def test_the_same_seed_prints_the_same_numbers(capsys, log):
    one, two = (trained(capsys, log, "--rank", "4", "--seed", "3") for _ in range(2))
    assert one["test"] == two["test"]


def test_people_see_a_table_and_get_a_run_folder(capsys, log, tmp_path):
    out = tmp_path / "run"
    assert main(["train", log, "--compression", "10%", "--rank", "4", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "test MSE" in shown
    assert "of index" in shown
    run = load_run(out)
    assert run.source["data"] == log
    assert f"{run.result['test']['mse']:.4f}" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--compression", "tiny"], "compression must be a share"),
        (["--embedding", "magic"], "embedding must be one of"),
        (["--fold", "one"], "fold must look like 1/5"),
        (["--fold", "9/5"], "fold must lie in 1 … 5"),
        (["--preset", "x"], "preset must be one of"),
        (["--out", "/dev/null/run"], "cannot write in folder"),
    ],
)
def test_mistakes_are_one_line(capsys, log, words, told):
    assert main(["train", log, "--rank", "4", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
