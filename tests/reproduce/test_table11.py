from dataclasses import replace

import numpy as np
import pytest

from celrec.evaluation.cell_file import CellFile
from celrec.offline.fitting import fit
from reproduce.table11 import EXPERIMENTS
from reproduce.trial import Trial
from tests.reproduce.entries import by_place, settings, small, validation_records

TABLE = EXPERIMENTS["table11"]
pytestmark = pytest.mark.usefixtures("all_data_are_small")


def test_the_papers_numbers_stand_in_their_places():
    entries = by_place(TABLE)
    assert entries["t1 = 20", "ml-1m 0.5 %"].paper == 0.7931
    assert entries["t1 = 40", "ml-1m 1 %"].paper == 0.7858
    assert entries["t1 = 100, training", "ml-1m 0.5 %"].paper == 0.7329
    assert entries["t1 = 20, training", "ml-1m 1 %"].paper == 0.7071
    assert len(entries) == 12


def test_test_and_training_errors_are_read_off_the_same_trials():
    entries = by_place(TABLE)
    for (row, column), entry in entries.items():
        assert entry.trial == entries[row.removesuffix(", training"), column].trial
        assert entry.trial.plan.compression == {"ml-1m 0.5 %": "20", "ml-1m 1 %": "40"}[column]
        assert entry.trial.plan.preset == "paper"
    known = CellFile(None)
    for cell in TABLE.cells(known, quick=False):
        known.keep(cell, {"valid": 1.0})
    assert len(TABLE.cells(known, quick=False)) == 4 + 6 * 5


@pytest.mark.parametrize("period", [20, 40, 100])
def test_members_move_every_so_many_steps_and_at_no_other(period):
    entry = by_place(TABLE, quick=True)[f"t1 = {period}", "ml-100k 0.5 %"]
    assert settings(entry).schedule.reassign_every == period
    told = validation_records(
        small(entry, split_every=1, steps=200, validate_every=10, patience=99)
    )
    moved = [record.step for record in told[1:] if record.moved]
    assert moved
    assert all(step % period == 0 for step in moved)


def test_a_cell_has_the_training_error_and_the_number_of_reassignments():
    trial = small(by_place(TABLE, quick=True)["t1 = 20", "ml-100k 0.5 %"], steps=130)
    found = TABLE.run(trial.cell())
    split = trial.split()
    fitted = fit(split, trial.plan, change=trial.changed)
    log = split.train_and_valid()
    errors = fitted.model.predict(log).numpy() - log.target
    assert found["train"] == pytest.approx(float((errors**2).mean()), rel=1e-4)
    assert found["train"] < found["test"]["mse"]
    assert found["reassignments"] == found["steps"] // 20 > 0


def test_a_report_has_errors_and_numbers_of_reassignments(tmp_path):
    known = CellFile(None)
    names = ("rows", "table", "index", "training", "steps", "seconds")
    for cell in TABLE.cells(known, quick=False):
        known.keep(cell, {"valid": Trial.of(cell).plan.penalty})
    for cell in TABLE.cells(known, quick=False)[4:]:
        trial = Trial.of(cell)
        assert trial.plan.penalty == 0.5
        period = trial.value_of("schedule.reassign_every")
        mse = 1 + trial.fold / 100 + period / 1000
        told = {"test": {"mse": mse}, "train": mse / 2, "reassignments": 2000 // period}
        known.keep(cell, {**told, **dict.fromkeys(names, 1)})
    errors, differences, details, times = TABLE.report(known, tmp_path, quick=False).tables
    mean = 1.02 + np.mean([0.01, 0.02, 0.03, 0.04, 0.05])
    assert errors.rows[0][1].startswith(f"{mean:.4f} ±")
    assert errors.rows[3][1].startswith(f"{mean / 2:.4f} ±")
    assert differences.rows[2][1] == "+0.0600 ± 0.0000"
    assert differences.rows[5][2] == "+0.0300 ± 0.0000"
    assert [row[0] for row in details.rows] == [f"t1 = {t}" for t in (20, 40, 100)] * 2
    assert times.rows == [
        ["t1 = 20", "100 [≈100]", "100 [≈100]"],
        ["t1 = 40", "50 [≈50]", "50 [≈50]"],
        ["t1 = 100", "20 [≈20]", "20 [≈20]"],
    ]


def test_what_diverged_has_no_number(tmp_path):
    known = CellFile(None)
    trial = replace(by_place(TABLE, quick=True)["t1 = 20", "ml-100k 1 %"].trial, quick=True)
    known.keep(trial.cell(), {"valid": None, "diverged": "it did"})
    *_, times = TABLE.report(known, tmp_path, quick=True).tables
    assert times.rows[0] == ["t1 = 20", "– [≈100]", "– [≈100]"]
