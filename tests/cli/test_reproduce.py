import json
import os

import pytest

from celrec.cli.main import main
from reproduce import registry
from reproduce.experiment import Experiment
from reproduce.report import Report, ResultTable
from reproduce.runner import Runner


class Doubles(Experiment):
    """Twice some numbers."""

    def __init__(self, name):
        self.name, self.title = name, f"Doubles of {name}"

    def cells(self, known, *, quick):
        del known
        return [{"number": number} for number in range(1 if quick else 2)]

    def run(self, cell):
        return {"double": 2 * cell["number"], "process": os.getpid()}

    def report(self, known, folder, *, quick):
        found = [known.get(cell) for cell in self.cells(known, quick=quick)]
        rows = [[str(one["double"])] for one in found if one]
        return Report(self.title, [ResultTable([folder.name], rows)], missing=found.count(None))


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    known = {name: Doubles(name) for name in ("one", "two")}
    monkeypatch.setattr(registry, "NAMES", tuple(known))
    monkeypatch.setattr(registry, "find_experiment", known.__getitem__)
    return known


def reproduced(capsys, *words):
    code = main(["reproduce", *words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_without_a_name_all_are_listed(capsys):
    assert reproduced(capsys).split("\n")[:2] == [
        "one             Doubles of one",
        "two             Doubles of two",
    ]


def test_a_report_is_printed_and_written(capsys, tmp_path):
    folder = tmp_path / "results"
    out = reproduced(capsys, "one", "--results", str(folder))
    report = "## Doubles of one\n\n| results |\n|---------|\n| 0       |\n| 2       |\n"
    assert out == report + "\n"
    assert (folder / "one.md").read_text() == report
    assert len((folder / "one.jsonl").read_text().splitlines()) == 2


def test_all_of_them_quickly_for_machines(capsys, tmp_path):
    out = reproduced(capsys, "all", "--quick", "--json", "--results", str(tmp_path))
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["name"] for one in found] == ["one", "two"]
    assert found[0]["tables"] == [{"headers": ["quick"], "rows": [["0"]], "caption": ""}]
    assert not (tmp_path / "one.jsonl").exists()


def test_what_there_is_can_be_shown_without_any_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Runner, "run", lambda *_: pytest.fail("it worked"))
    out = reproduced(capsys, "two", "--show", "--results", str(tmp_path))
    assert "Not finished: 2 cells are missing" in out


def test_what_is_not_there_is_told_in_one_line(capsys, monkeypatch):
    monkeypatch.undo()
    assert main(["reproduce", "all", "table99"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("celrec: no experiment is called 'table99'; take one of table2")
    assert complaint.count("\n") == 1
