import json

import pytest

from celrec.evaluation.cell_file import CellFile
from reproduce.training_time import TrainingTime

EXPERIMENT = TrainingTime()


def test_every_size_is_measured_once_in_a_turn_and_nothing_runs_beside_it():
    cells = EXPERIMENT.cells(CellFile(None), quick=False)
    assert len({json.dumps(cell) for cell in cells}) == len(cells) == 3 * 12
    assert [cell["turn"] for cell in cells] == [0] * 12 + [1] * 12 + [2] * 12
    quick = EXPERIMENT.cells(CellFile(None), quick=True)
    assert all(cell in cells for cell in quick)
    assert len(quick) == 6
    assert EXPERIMENT.timed


def test_slopes_are_those_of_the_medians(tmp_path):
    known = CellFile(None)
    for cell in EXPERIMENT.cells(known, quick=False):
        if cell["turn"] == 1 and cell["clusters"] == 400:
            continue
        outlier = 50.0 if cell["turn"] == 2 and cell["rank"] == 16 else 1.0
        size = cell["interactions"] * cell["clusters"] ** 0.5 / (400_000 * 10)
        known.keep(cell, {"seconds": outlier * size})
    report = EXPERIMENT.report(known, tmp_path, quick=False)
    assert report.missing == 1
    (table,) = report.tables
    assert [row[0] for row in table.rows] == ["interactions", "clusters", "rank"]
    assert [row[2] for row in table.rows[:2]] == ["1.00", "0.50"]
    assert abs(float(table.rows[2][2])) < 0.005  # no slope, in spite of an outlier
    assert "1,600,000: 4.00" in table.rows[0][1]


def test_nothing_is_told_of_what_is_not_known(tmp_path):
    report = EXPERIMENT.report(CellFile(None), tmp_path, quick=False)
    assert report.missing == 36
    assert [row[1:] for row in report.tables[0].rows] == [["–", "–"]] * 3


@pytest.mark.parametrize("clusters", [2, 6])
def test_a_cell_is_a_whole_run(clusters, monkeypatch):
    from reproduce import training_time as module

    grown = []
    usual = module.OfflineTraining.run

    def run(training):
        validation_records = usual(training)
        grown.append((validation_records[-1].step, training.grown_to["items"]))
        return validation_records

    monkeypatch.setattr(module.OfflineTraining, "run", run)
    monkeypatch.setattr(module, "STEPS", 40)
    found = EXPERIMENT.run({"interactions": 3_000, "clusters": clusters, "rank": 4, "turn": 0})
    assert found["seconds"] > 0
    assert grown == [(40, 4), (40, clusters)]
