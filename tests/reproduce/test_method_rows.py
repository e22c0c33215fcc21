from dataclasses import replace

import pytest

from celrec.evaluation.cell_file import CellFile
from reproduce.method_rows import METHODS, method_entries
from reproduce.table2 import EXPERIMENTS
from tests.reproduce.made_up import check_cells

SIZES = {"5 %": "200", "1 %": "40", "0.5 %": "20"}
ENTRIES = {
    (entry.row, entry.column): entry
    for entry in method_entries("ml-1m", SIZES, {"CEL": (0.75, 0.77, 0.78)}, model="nmf", folds=2)
}


def test_every_method_has_its_place_at_every_size():
    for row in METHODS:
        columns = {column for label, column in ENTRIES if label == row.label}
        expected = set() if row.embedding is None else {f"ml-1m {name}" for name in SIZES}
        assert columns == expected | ({"ml-1m 100 %"} if row.whole else set())
    assert all(entry.folds == 2 for entry in ENTRIES.values())


def test_the_papers_numbers_are_at_100_and_then_at_each_size_as_far_as_they_go():
    paper = {column: entry.paper for (label, column), entry in ENTRIES.items() if label == "CEL"}
    assert paper == {"ml-1m 100 %": 0.75, "ml-1m 5 %": 0.77, "ml-1m 1 %": 0.78, "ml-1m 0.5 %": None}
    assert ENTRIES["BH", "ml-1m 1 %"].paper is None


def test_all_sizes_are_tuned_in_the_middle_and_what_stands_under_100_by_itself():
    for (label, column), entry in ENTRIES.items():
        if column == "ml-1m 100 %":
            assert entry.tuned == entry.trial
        else:
            assert entry.tuned == ENTRIES[label, "ml-1m 1 %"].trial
            assert entry.trial.plan == replace(
                entry.tuned.plan, compression=SIZES[column.removeprefix("ml-1m ")]
            )
    whole = {label: ENTRIES[label, "ml-1m 100 %"].trial.plan for label in ("CEL", "CEL-Lite")}
    assert [plan.personalise for plan in whole.values()] == ["all", "20"]
    assert [plan.compression for plan in whole.values()] == ["40", "40"]


def test_settings_are_for_those_that_are_named_when_tuned_too():
    settings = {"CEL-Lite": {"solver.batch": 64, "plan.rate": 2.0}}
    for entry in method_entries("ml-1m", SIZES, {}, model="din", settings=settings):
        for trial in (entry.trial, entry.tuned):
            told = (trial.change, trial.plan.rate)
            assert told == (({"solver.batch": 64}, 2.0) if entry.row == "CEL-Lite" else ({}, 1.0))


@pytest.mark.usefixtures("all_data_are_small")
def test_quick_networks_are_of_the_smaller_data():
    check_cells(EXPERIMENTS["table2-din"])


@pytest.mark.usefixtures("all_data_are_small")
def test_quick_networks_begin_as_the_others_do():
    table = EXPERIMENTS["table2-din"]
    whole, quick = (
        {
            (entry.row, entry.column.split()[-2]): (entry.trial.plan.preset, entry.trial.change)
            for entry in table.present(CellFile(None), quick=quick)
        }
        for quick in (False, True)
    )
    assert quick == whole
