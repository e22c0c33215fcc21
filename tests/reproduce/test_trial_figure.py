import pickle

import pytest

from celrec import Plan
from celrec.evaluation.cell_file import CellFile
from reproduce.report import ResultTable
from reproduce.trial import Trial
from reproduce.trial_figure import QUICK, TrialFigure
from reproduce.trial_table import Entry
from tests.reproduce.made_up import finished, work

pytestmark = pytest.mark.usefixtures("all_data")
CEL = Trial("ml-1m", Plan(compression="4", rank=3))
SMALL = Trial("ml-100k", Plan(compression="4", rank=3))


class Dots(TrialFigure):
    """One that draws nothing, and says what it would have drawn."""

    def look(self, fitted, split):
        return {"seen": [fitted.steps, len(split.test)]}

    def draw(self, found, folder):
        del folder
        self.drawn = {key: sorted(folds) for key, folds in found.items()}
        return ["dots.png"]

    def more_tables(self, found):
        return [ResultTable(("more",), [(str(len(found)),)])]


@pytest.fixture
def dots():
    entries = [Entry("CEL", "1 %", CEL), Entry("Modulo", "1 %", Trial("ml-1m", Plan("modulo")))]
    return Dots("dots", "Dots", entries, [Entry("CEL", "2 %", SMALL)], notes=("A note.",))


def test_with_nothing_known_there_is_a_report_without_a_figure(dots, tmp_path):
    report = dots.report(CellFile(None), tmp_path, quick=False)
    assert (report.missing, report.figures, report.notes) == (10, (), ["A note."])
    assert report.markdown()


def test_what_is_known_and_did_not_diverge_is_drawn(dots, tmp_path):
    def make(trial):
        if trial.plan.embedding == "modulo":
            return {"valid": None, "diverged": "it did"} if trial.fold == 1 else None
        return finished(0.8) if trial.fold != 3 else None

    report = dots.report(work(dots, make), tmp_path, quick=False)
    assert dots.drawn == {("CEL", "1 %"): [1, 2, 4, 5], ("Modulo", "1 %"): []}
    assert (report.missing, report.figures) == (5, ["dots.png"])
    assert report.tables[0].rows == [("2",)]
    assert report.tables[1].rows[0] == ["CEL", "0.8000 ± 0.0000 (4 folds)"]


def test_what_is_quick_has_its_own_cells_and_says_so(dots, tmp_path):
    cells = dots.cells(CellFile(None), quick=True)
    assert [(cell["data"], cell["fold"], cell["quick"]) for cell in cells] == [("ml-100k", 1, True)]
    report = dots.report(work(dots, lambda _: finished(0.8), quick=True), tmp_path, quick=True)
    assert dots.drawn == {("CEL", "2 %"): [1]}
    assert report.notes == ["A note.", QUICK]


def test_a_cell_keeps_what_was_seen(dots, small_log):
    found = pickle.loads(pickle.dumps(dots)).run(dots.cells(CellFile(None), quick=True)[0])  # noqa: S301
    assert found["seen"] == [found["steps"], len(small_log) // 5]
    assert found["test"]["mse"] > 0
