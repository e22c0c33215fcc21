import json
from dataclasses import replace

import pytest

from celrec import Planted
from celrec.cli.main import main
from celrec.config.presets import PRESETS
from celrec.embeddings.registry import METHODS


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    how = PRESETS["nmf"]["default"]
    short = replace(how.schedule, steps=4, validate_every=2)
    monkeypatch.setitem(PRESETS["nmf"], "default", replace(how, schedule=short))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.csv"
    planted = Planted(rows=2000, users=40, items=50, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(path)
    return str(path)


def compared(capsys, *words):
    code = main(["compare", *words, "--rank", "3"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_machines_get_every_number_with_the_full_embedding_among_them(capsys, log):
    words = [log, "--embedding", "cel,qr", "--compression", "20,2", "--json"]
    found = json.loads(compared(capsys, *words))
    cells = [(one["embedding"], one["compression"]) for one in found]
    assert cells == [("full", "100%"), ("cel", "20"), ("cel", "2"), ("qr", "20"), ("qr", "2")]
    for one in found:
        assert one["serving"] == one["table"] + one["index"] > 0
        assert one["relative"] > 0
    over = found[-1]
    assert over["overrun"] > 1  # quotients and remainders of 50 ids need more than two rows


def test_people_see_one_table_and_who_is_ahead(capsys, log):
    out = compared(capsys, log, "--embedding", "cel,modulo", "--compression", "4")
    head = next(line for line in out.splitlines() if "embedding" in line)
    for word in ("rows", "test MSE", "cold", "warm", "table", "index", "serving", "training"):
        assert word in head
    rows = [line.split() for line in out.splitlines() if " modulo " in line]
    assert rows[0][:4] == ["4", "modulo", "✓✓✓", "4"]
    assert "4: ahead of CEL with these rows:" in out
    assert "100%: ahead" not in out


def test_what_is_kept_is_shown_again_and_drawn(capsys, log, tmp_path, monkeypatch):
    words = [log, "--embedding", "modulo", "--compression", "4", "--folds", "1/5,3/5"]
    words += ["--out", str(tmp_path / "cells.jsonl"), "--json"]
    first = compared(capsys, *words)
    assert json.loads(first)[0]["folds"] == 2
    monkeypatch.setattr("celrec.evaluation.comparison.train_and_measure", None)
    picture = tmp_path / "picture.png"
    assert compared(capsys, *words, "--plot", str(picture)) == first
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--embedding", "cel,magic"], "embedding must be one of cel, "),
        (["--embedding", "cel,,full"], "embedding must be words with commas between them"),
        (["--compression", "much"], "compression must be a share"),
        (["--folds", "one"], "fold must look like 1/5, not 'one'"),
        (["--embedding", "modulo", "--compression", "auto"], "'auto' needs embedding 'cel'"),
        (["--embedding", "etree", "--model", "mf"], "'etree' knows no biases"),
        (["--embedding", "etree", "--side", "both"], "'etree' is for side 'items'"),
        (["--embedding", "modulo", "--plot", "picture.bmp"], "pictures end in png"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_trained(capsys, log, words, told, monkeypatch):
    monkeypatch.setattr("celrec.evaluation.comparison.train_and_measure", None)
    code = main(["compare", log, *words])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    assert told in captured.err


def test_all_methods_are_told(capsys):
    assert main(["embeddings", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(METHODS)
    assert main(["embeddings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*METHODS, "prehashK"]
