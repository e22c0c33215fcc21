import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec.cel.criteria import CRITERIA
from celrec.evaluation.cell_file import CellFile
from reproduce.figure6 import EXPERIMENTS, average_ranks, mean_ranks
from reproduce.trial import Trial
from tests.reproduce.made_up import check_cells, check_picture, finished, noise, work

pytestmark = pytest.mark.usefixtures("all_data")
FIGURE = EXPERIMENTS["figure6"]
ORDER = ["interactions", "members", "total-loss", "mean-loss", "gradient-norm"]


def made_up(trial):
    """In the order of the criteria, but for the last two, which are equal."""
    place = min(ORDER.index(trial.value_of("criterion")), 3)
    return finished(0.8 + 0.01 * noise(trial.data, trial.fold) + 0.001 * place)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, np.inf]), min_size=1, max_size=7))
def test_ranks_are_places_in_order_and_equal_ones_share_theirs(values):
    in_order = sorted(values)
    expected = []
    for value in values:
        places = [place for place, other in enumerate(in_order, 1) if other == value]
        expected.append(sum(places) / len(places))
    assert average_ranks(values).tolist() == expected


def test_mean_ranks_are_over_settings_of_which_all_is_known():
    def folds(*errors):
        return {fold: finished(error) for fold, error in enumerate(errors, 1)}

    found = {
        **{(name, "A, 1 %"): folds(0.1 * n, 0.1 * n) for n, name in enumerate(ORDER)},
        **{(name, "A, 2 %"): folds(-0.1 * (n // 2)) for n, name in enumerate(ORDER)},
        # One criterion lacks a fold here, and there all.
        **{(name, "B, 1 %"): folds(*[0.5] * (1 + (n > 0))) for n, name in enumerate(ORDER)},
        **{(name, "B, 2 %"): folds(*[0.5] * (n > 0)) for n, name in enumerate(ORDER)},
    }
    ranks = mean_ranks(found)
    assert ranks == dict(zip(ORDER, [2.75, 3.25, 2.75, 3.25, 3.0], strict=True))
    assert mean_ranks({key: {} for key in found}) == {}


def test_cells_are_told_apart():
    check_cells(FIGURE)
    trials = [Trial.of(cell) for cell in FIGURE.cells(CellFile(None), quick=False)]
    assert len(trials) == 5 * 4 * (5 + 5 + 1)
    assert {t.plan.preset for t in trials if t.plan.model == "nmf"} == {"descent"}
    assert {t.fold for t in trials if t.plan.model == "din"} == {1}


@pytest.mark.usefixtures("small_log")
def test_the_criterion_of_a_cell_is_the_one_that_splits(monkeypatch):
    asked = []
    for name, criterion in list(CRITERIA.items()):
        monkeypatch.setitem(
            CRITERIA, name, lambda sums, n=name, f=criterion: asked.append(n) or f(sums)
        )
    cell = next(
        cell
        for cell in FIGURE.cells(CellFile(None), quick=True)
        if cell["change"].get("criterion") == "mean-loss"
    )
    FIGURE.run({**cell, "change": {**cell["change"], "schedule.steps": 80}})
    assert set(asked) == {"mean-loss"}


def test_ranks_and_differences_are_told(tmp_path):
    report = FIGURE.report(work(FIGURE, made_up), tmp_path, quick=False)
    check_picture(report, tmp_path, "figure6")
    assert report.missing == 0
    ranks, _, differences = report.tables[:3]
    assert "12 settings" in ranks.caption
    assert [row[1] for row in ranks.rows] == ["1.00", "2.00", "3.00", "4.50", "4.50"]
    assert differences.rows[1][1] == "+0.0010 ± 0.0000"


@pytest.mark.parametrize("known_of", ["interactions", "ML-1m"])
def test_a_part_is_drawn_too(tmp_path, known_of):
    def make(trial):
        wanted = trial.value_of("criterion") == known_of or (
            trial.data == "ml-1m" and known_of == "ML-1m"
        )
        return made_up(trial) if wanted else None

    quick = known_of == "interactions"
    report = FIGURE.report(work(FIGURE, make, quick=quick), tmp_path, quick=quick)
    check_picture(report, tmp_path, "figure6")
    assert report.tables[0].rows[0][1] == ("–" if known_of == "interactions" else "1.00")


def test_with_nothing_known_there_is_a_report_too(tmp_path):
    assert FIGURE.report(CellFile(None), tmp_path, quick=False).figures == ()
