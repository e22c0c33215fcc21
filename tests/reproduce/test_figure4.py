from dataclasses import replace

import pytest

from celrec import Plan
from celrec.evaluation.cell_file import CellFile
from reproduce import figure4
from reproduce.figure4 import EXPERIMENTS
from reproduce.trial import Trial
from tests.reproduce.made_up import check_cells, check_picture, finished, noise, work

pytestmark = pytest.mark.usefixtures("all_data")
FIGURE = EXPERIMENTS["figure4"]


def made_up(trial):
    level = {"dense": 0.75, "original": 0.77, "sparse": 0.83}[trial.variant]
    personal = {"dense": -0.03, "original": -0.02, "sparse": 0.01}[trial.variant]
    level += 0.01 * noise(trial.fold) + 0.001 * float(trial.plan.compression[:-1])
    return finished(level + personal * (trial.plan.personalise == "all"))


@pytest.mark.slow
@pytest.mark.usefixtures("small_log")
def test_a_trial_ends_with_all_its_clusters():
    allowed = Trial("ml-100k", Plan(compression="60%"), quick=True)
    assert allowed.run()["rows"] < 30  # validation data liked fewer better
    assert replace(figure4.make_trial("ml-100k", "original", 60), quick=True).run()["rows"] == 30


def test_cells_are_told_apart():
    check_cells(FIGURE)
    trials = [Trial.of(cell) for cell in FIGURE.cells(work(FIGURE, made_up), quick=False)]
    assert len(trials) == 3 * 4 + 3 * (6 + 5) * 5
    assert {t.variant for t in trials if t.validated} == {"dense", "original", "sparse"}
    assert not any(t.plan.compression == "100%" for t in trials if t.plan.personalise == "all")


def test_what_personalisation_changes_is_told_fold_by_fold(tmp_path):
    report = FIGURE.report(work(FIGURE, made_up), tmp_path, quick=False)
    check_picture(report, tmp_path, "figure4")
    assert report.missing == 0
    changes, errors = report.tables[:2]
    assert changes.headers == ["", "0.5 %", "1 %", "2 %", "5 %", "10 %"]
    assert [row[:2] for row in changes.rows] == [
        ["dense", "-0.0300 ± 0.0000"],
        ["original", "-0.0200 ± 0.0000"],
        ["sparse", "+0.0100 ± 0.0000"],
    ]
    assert errors.headers[-1] == "100 %"
    assert errors.rows[1][-1] == ""


def test_a_part_is_drawn_too(tmp_path):
    known = work(FIGURE, lambda t: made_up(t) if t.variant == "sparse" else None, quick=True)
    report = FIGURE.report(known, tmp_path, quick=True)
    check_picture(report, tmp_path, "figure4")
    assert report.tables[0].headers == ["", "0.5 %", "2 %", "5 %"]
    assert [row[1] for row in report.tables[0].rows] == ["–", "–", "+0.0100"]
    assert FIGURE.report(CellFile(None), tmp_path, quick=False).figures == ()
