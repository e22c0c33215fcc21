import pytest

from celrec.evaluation.cell_file import CellFile
from reproduce.planted_recovery import PlantedRecovery

EXPERIMENT = PlantedRecovery()


@pytest.mark.parametrize(
    ("clusters", "equal"), [(12, 0), pytest.param(20, 8, marks=pytest.mark.slow)]
)
def test_what_was_planted_is_found_and_the_rest_has_equal_rows(clusters, equal):
    found = EXPERIMENT.run({"solver": "least squares", "clusters": clusters, "seed": 0})
    assert found["unexplained"] < 1e-3
    assert found["equal"] == equal
    if not equal:
        assert found["agreement"] == 1


def test_seeds_are_averaged_and_what_is_missing_is_told(tmp_path):
    known = CellFile(None)
    cells = EXPERIMENT.cells(known, quick=False)
    assert len(cells) == 20
    for cell in cells[:-1]:
        spread = 0.1 * cell["seed"]
        known.keep(cell, {"agreement": 1 - spread, "equal": cell["seed"], "unexplained": 0.25})
    report = EXPERIMENT.report(known, tmp_path, quick=False)
    assert report.missing == 1
    rows = report.tables[0].rows
    assert rows[0] == ["least squares", "12", "0.800 ± 0.071", "2.0 ± 0.7", "0.25000 ± 0.00000"]
    assert rows[3][2] == "0.850 ± 0.065 (4 seeds)"
