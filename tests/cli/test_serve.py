import sys

import polars as pl
import pytest

from celrec.cli.main import main
from celrec.config.plan import Plan
from celrec.runs.online_run import OnlineRun
from celrec.streams.events import Events


def complaint(capsys, *arguments):
    assert main(["serve", *map(str, arguments)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    return told[0]


def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("CELREC_API_KEY", raising=False)
    nowhere = tmp_path / "nowhere"
    assert "not a run folder" in complaint(capsys, nowhere, "--port", 0)
    told = complaint(capsys, nowhere, "--host", "0.0.0.0")  # noqa: S104
    assert "needs an API key" in told
    assert "65535" in complaint(capsys, nowhere, "--port", 99999999)
    assert "max_body" in complaint(capsys, nowhere, "--max-body", 1)
    assert "threads" in complaint(capsys, nowhere, "--threads", 0)
    assert "cannot read the API key" in complaint(capsys, nowhere, "--api-key-file", nowhere)
    assert not nowhere.exists()


def test_a_port_that_is_taken_is_told(tmp_path, capsys, publisher):
    port = publisher.url("").rpartition(":")[2].strip("/")
    assert "Address already in use" in complaint(capsys, tmp_path, "--port", port)


def test_a_new_run_can_be_gone_on_with_by_online(tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr("celrec.service.app.serve", lambda folder, *_, **__: served.append(folder))
    folder = tmp_path / "new"
    assert main(["serve", str(folder), "--new", "--port", "0"]) == 0
    with OnlineRun.resume(folder) as run:
        assert (run.events, run.offset) == (0, None)
        assert isinstance(run.source["asked"], dict)
    assert main(["serve", str(folder), "--new", "--port", "0"]) == 0  # goes on
    log = tmp_path / "log.csv"
    log.write_text("user,item,rating\na,x,1\nb,y,2\n")
    assert main(["online", str(log), "--run", str(folder), "--json"]) == 0
    with OnlineRun.resume(folder) as run:
        assert run.events == 2
    assert served == [folder, folder]


def test_a_folder_of_something_else_is_not_made_a_run(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("dear")
    assert "no online run" in complaint(capsys, tmp_path, "--new", "--port", 0)


def test_a_run_that_another_process_works_on_is_told(tmp_path, capsys):
    plan = Plan(embedding="cel-lite", model="mf", compression="4")
    with OnlineRun.start(tmp_path / "run", plan) as run:
        frame = pl.DataFrame({"user": [1], "item": [2], "target": [3.0]})
        run.learn(Events(frame, {}))
        run.checkpoint()
        assert "another process works" in complaint(capsys, tmp_path / "run", "--port", 0)


def test_the_help_has_an_example(capsys):
    assert main(["serve", "--help"]) == 0
    told = capsys.readouterr().out
    assert "celrec serve live --port 8000" in told
    assert "'celrec[serve]'" in told  # not read as markup


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_what_has_to_be_installed_is_told(tmp_path, capsys, monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("celrec.service.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert "celrec[serve]" in complaint(capsys, tmp_path)
