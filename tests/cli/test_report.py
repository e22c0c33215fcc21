import json
import shlex
import shutil

import pytest

from celrec import Planted
from celrec.cli.main import main
from celrec.runs.run_folder import load_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    planted = Planted(rows=2000, users=30, items=40, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(folder / "log.csv")
    words = f"train {shlex.quote(str(folder / 'log.csv'))} --model nmf --rank 3 --compression 4"
    assert main([*shlex.split(words), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_report_writes_a_page_into_the_run_folder(run, capsys):
    assert main(["report", str(run)]) == 0
    printed = capsys.readouterr()
    assert str(run / "report.html") in printed.out
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (run / "reference.json").is_file()
    assert load_run(run).plan.rank == 3  # still a run folder


def test_with_json_it_prints_one_object(run, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(run), "--no-reference", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(out)
    assert told["bytes"] == out.stat().st_size
    test = json.loads((run / "result.json").read_text())["test"]
    assert told["figures"]["run"]["test"]["mse"] == pytest.approx(test["mse"])
    assert set(told["figures"]) == {"run", "biases", "means"}
    assert not (run / "report.html").exists()


def test_train_tells_how_to_look_at_what_it_made(trained, capsys):
    log = str(trained.parent / "log.csv")
    out = trained.parent / "with a space"
    words = ["train", log, "--model", "nmf", "--rank", "2", "--compression", "2", "--out", str(out)]
    assert main(words) == 0
    assert "celrecreport'" in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [["nowhere"], ["nowhere", "--json"]])
def test_a_mistake_is_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "nowhere: not a run folder" in printed.err
