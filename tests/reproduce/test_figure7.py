import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, ClusteredEmbedding, Plan, Planted
from celrec.errors import DivergedError
from celrec.evaluation.cell_file import CellFile
from reproduce import figure7, presence
from reproduce.figure7 import EXPERIMENTS, outside_central
from reproduce.trial import Trial
from tests.reproduce.made_up import check_cells, check_picture, work

pytestmark = pytest.mark.usefixtures("all_data")
FIGURE = EXPERIMENTS["figure7"]
LOG = Planted(rows=60, users=6, items=9, dim=3, item_clusters=2).interactions()


def made_up(trial):
    slower = 1 + (trial.plan.preset == "paper")
    outside = [0.0, 0.5 / slower, 1.0, 0.5, 1.0, 1.0 / slower]
    return {"steps": [1, 2, 3, 4, 5, 6], "rows": [2] * 6, "outside": outside}


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 1.0, -1.0, 3.0]), min_size=width, max_size=width),
            min_size=1,
            max_size=6,
        )
    ),
    st.integers(0, 3),
)
def test_shares_are_those_of_a_look_at_each_row(rows, spare):
    table = ClusteredEmbedding(LOG.num_items, len(rows[0]), max_clusters=len(rows) + spare)
    table.start_from(torch.arange(LOG.num_items) % len(rows))
    table.weight.data[: len(rows)] = torch.tensor(rows)
    outside = 0
    for row in rows:
        limit = math.sqrt(len(row) - 1) * math.sqrt(sum(value * value for value in row))
        outside += sum(row) < limit - 1e-9
    assert outside_central(table, LOG) == pytest.approx(outside / len(rows))


def test_rows_that_are_no_numbers_are_told_of():
    table = ClusteredEmbedding(LOG.num_items, 2, max_clusters=1)
    table.weight.data.fill_(math.nan)
    with pytest.raises(DivergedError, match="lower the learning rate"):
        outside_central(table, LOG)


def test_cells_are_told_apart():
    check_cells(FIGURE)
    assert len(FIGURE.cells(CellFile(None), quick=False)) == 2 * 3 * 4


def test_what_is_not_there_is_left_out(monkeypatch):
    monkeypatch.setattr(presence, "find_dataset", lambda name: None if name == "ml-1m" else name)
    assert {cell["data"] for cell in FIGURE.cells(CellFile(None), quick=False)} == {"ml-100k"}


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_it_is_looked_at_until_the_last_step(preset):
    line = figure7.Line("ml-100k", preset, "0.5 %")
    cell = line.trial(quick=True).cell()
    found = FIGURE.run(cell)
    last = Trial.of(cell).changed(Plan(preset=preset).settings()).schedule.steps
    every = figure7.LOOK_EVERY[preset]
    assert found["steps"] == [*range(every, last, every), last]
    assert found["rows"] == sorted(found["rows"])
    assert found["rows"][-1] == 8
    assert all(0 <= share <= 1 for share in found["outside"])
    assert json.loads(json.dumps(found)) == found


@pytest.mark.usefixtures("small_log")
def test_training_that_diverges_is_told_as_far_as_it_came():
    change = {"solver.learning_rate": 1e9, "solver.bounded": False, "schedule.validate_every": 1}
    plan = Plan(compression="4", rank=3, model="mf", preset="descent")
    found = FIGURE.run(Trial("ml-100k", plan, change=change, quick=True).cell())
    assert "lower the learning rate" in found["diverged"]
    assert len(found["steps"]) == len(found["outside"]) < 100
    with pytest.raises(CelrecError, match="'modulo' has no clusters"):
        FIGURE.run(Trial("ml-100k", Plan("modulo")).cell())


def test_it_is_told_from_when_on_rows_are_outside(tmp_path):
    report = FIGURE.report(work(FIGURE, made_up), tmp_path, quick=False)
    check_picture(report, tmp_path, "figure7")
    assert report.missing == 0
    rows = {(row[0], row[1], row[2]): row[3:] for row in report.tables[0].rows}
    assert len(rows) == 24
    assert rows["ml-1m", "to the letter", "5 %"] == ["2", "50.0 %", "3", "never", "6"]
    assert rows["ml-1m", "least squares", "5 %"] == ["2", "100.0 %", "2", "5", "6"]


def test_a_part_is_drawn_too_and_nothing_is_no_error(tmp_path):
    assert FIGURE.report(CellFile(None), tmp_path, quick=False).missing == 24
    known = work(
        FIGURE,
        lambda t: (
            made_up(t)
            if t.plan.preset == "default"
            else {"steps": [], "rows": [], "outside": [], "diverged": "at once"}
        ),
        quick=True,
    )
    report = FIGURE.report(known, tmp_path, quick=True)
    check_picture(report, tmp_path, "figure7")
    assert [row[1] for row in report.tables[0].rows] == ["least squares"] * 2
