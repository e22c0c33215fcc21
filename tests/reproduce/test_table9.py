from dataclasses import replace

import pytest

from reproduce.table9 import EXPERIMENTS
from tests.reproduce.entries import by_place, settings, small, validation_records

TABLE = EXPERIMENTS["table9"]
pytestmark = pytest.mark.usefixtures("all_data_are_small")


def test_the_papers_numbers_stand_in_their_places():
    entries = by_place(TABLE)
    assert entries["No split, gradient descent", "ml-1m, NMF 100 %"].paper == 0.7582
    assert entries["CEL, gradient descent", "ml-1m, NMF 1 %"].paper == 0.7846
    assert entries["CEL, least squares", "ml-1m, NMF 1 %"].paper is None
    assert entries["No split, least squares", "ml-1m, DIN 0.5 %"].paper == 0.8023
    assert entries["CEL, least squares", "ml-1m, DIN 100 %"].paper == 0.7390
    never = "ml-1m, NMF 1 %, never reassigned"
    assert entries["CEL, gradient descent", never].paper is None
    assert len(entries) == 18 + 8
    assert not any(entry.paper for entry in by_place(TABLE, quick=True).values())


def test_rows_are_the_same_but_for_the_start():
    entries = by_place(TABLE)
    for (row, column), entry in entries.items():
        plan = entry.trial.plan
        assert entry.trial.data == "ml-1m"
        assert plan.model == ("din" if "DIN" in column else "nmf")
        assert plan.compression == ("20" if "0.5 %" in column else "40")
        assert plan.personalise == ("all" if "100 %" in column else "none")
        assert (settings(entry).schedule.reassign_every == 0) == ("never" in column)
        if row.startswith("No split"):
            other = entries[row.replace("No split", "CEL"), column]
            assert plan.start == f"random:{plan.compression}"
            assert replace(plan, start=None) == other.trial.plan
            assert entry.trial.change == other.trial.change
            assert entry.tuned == other.tuned


@pytest.mark.parametrize("solver", ["least squares", "gradient descent"])
def test_without_splits_there_are_all_clusters_from_the_start_and_members_move(solver):
    entries = by_place(TABLE, quick=True)
    schedule = {"steps": 60, "validate_every": 5}
    told = validation_records(small(entries[f"No split, {solver}", "ml-100k, NMF 1 %"], **schedule))
    assert {record.clusters for record in told} == {17}
    assert sum(record.moved for record in told) > 0
    told = validation_records(small(entries[f"CEL, {solver}", "ml-100k, NMF 1 %"], **schedule))
    assert told[0].clusters < 17


def test_without_splits_and_reassignments_clusters_stay_as_they_were_drawn():
    entry = by_place(TABLE, quick=True)[
        "No split, least squares", "ml-100k, NMF 1 %, never reassigned"
    ]
    told = validation_records(small(entry, steps=20, validate_every=5))
    assert {(record.clusters, record.moved) for record in told} == {(17, 0)}


def test_without_splits_a_network_has_all_clusters_too():
    entry = by_place(TABLE, quick=True)["No split, least squares", "ml-100k, DIN 1 %"]
    trial = replace(small(entry, steps=3), quick=True)
    found = TABLE.run(replace(trial, plan=replace(trial.plan, rank=None)).cell())
    assert found["rows"] == 17
    assert found["test"]["mse"] > 0
