import json

import pytest

from celrec import CelrecError, Plan, Planted
from celrec.cli.main import main
from celrec.evaluation.frontier import FULL_FIT, Frontier

BUDGETS = ("3B/id", "16B/id")


@pytest.fixture(scope="module")
def log():
    return Planted(4000, 90, 70, dim=2, item_clusters=8, noise=0.3, seed=4).interactions()


def frontier(log, path=None, **more):
    plan = Plan(model="mf", rank=4)
    return Frontier(
        log, budgets=BUDGETS, methods=("cel", "rq", "int8"), path=path, plan=plan, **more
    )


def test_there_is_a_row_for_each_budget_and_method_that_fits(log):
    rows = frontier(log).run()
    assert rows[0].method == FULL_FIT
    found = {(row.method, row.budget): row for row in rows[1:]}
    assert {("cel", "3B/id"), ("rq", "3B/id"), ("cel", "16B/id"), ("int8", "16B/id")} <= set(found)
    assert ("int8", "3B/id") not in found  # a row for each id takes more
    for (_, budget), row in found.items():
        assert row.size <= float(budget.removesuffix("B/id")) * (log.num_users + log.num_items)
        assert 0 < row.mean < 2 * float(log.target.var())
        assert (row.error, row.folds) == (None, 1)


def test_finished_cells_are_not_done_again(log, tmp_path, monkeypatch):
    path = tmp_path / "cells.jsonl"
    first = frontier(log, path, name="x").run()
    monkeypatch.setattr(Frontier, "_fits", None)  # nothing is left to fit
    assert frontier(log, path, name="x").run() == first
    assert frontier(log, path, name="x").rows() == first


def test_differences_to_cel_have_errors_over_folds(log):
    rows = frontier(log, folds=((1, 3), (2, 3))).run()
    ahead = {(row.method, row.budget): row.ahead for row in rows}
    assert ahead["cel", "3B/id"] is None
    assert ahead[FULL_FIT, ""] is None
    assert isinstance(ahead["rq", "3B/id"], float)
    assert all(row.folds == 2 and row.error is not None for row in rows)


def test_wrong_methods_are_refused(log):
    with pytest.raises(CelrecError, match=r"methods must be of cel, .*, not 'huffman'"):
        Frontier(log, methods=("huffman",))


def test_the_command_draws_and_resumes(log, tmp_path, capsys):
    data, out = tmp_path / "log.csv", tmp_path / "out"
    log.to_frame().write_csv(data)
    words = ["frontier", str(data), "--budgets", "4B/id", "--methods", "cel,rq", "--rank", "3"]
    assert main([*words, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "4B/id" in shown
    assert "full tables" in shown
    assert (out / "frontier.png").stat().st_size > 10_000
    assert main([*words, "--out", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == [FULL_FIT, "cel", "rq"]
    assert len((out / "cells.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--budgets", "lots"], "budget must be bytes such as 50kB or 2B/id, not 'lots'"),
        (["--methods", "cel,,rq"], "methods must be words with commas between them"),
        (["--folds", "9/5"], "fold"),
    ],
)
def test_wrong_options_are_told_in_one_line(log, tmp_path, capsys, wrong, message):
    data = tmp_path / "log.csv"
    log.to_frame().write_csv(data)
    assert main(["frontier", str(data), *wrong, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
