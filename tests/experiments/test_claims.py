import numpy as np
import pytest

from celrec.evaluation.cell_file import CellFile
from celrec.experiments.claims import EXPERIMENTS, left_empty
from celrec.training.fit import fit
from tests.experiments.entries import by_place, small

pytestmark = pytest.mark.usefixtures("all_data_are_small")
STARTS, INSIDE = EXPERIMENTS["claims-starts"], EXPERIMENTS["claims-inside"]


def test_starts_differ_in_nothing_else():
    entries = by_place(STARTS)
    assert len(entries) == 16
    one = entries["M₀ = 1, least squares", "ml-1m"].trial
    ten = entries["M₀ = 10, least squares", "ml-1m"].trial
    assert (one.plan.start, ten.plan.start) == ("one", "random:10")
    assert one == ten.having("plan.start", "one")
    for (row, column), entry in entries.items():
        solver = row.partition(", ")[2]
        assert entry.tuned == entries[f"M₀ = 1, {solver}", column].trial


@pytest.mark.parametrize("size", ["5 %", "1 %"])
def test_empty_clusters_are_those_that_no_item_fits_best(size):
    trial = small(by_place(INSIDE)["λ₁/λ₂", f"ml-100k {size}"], steps=69, judge_every=23)
    split = trial.split()
    model = fit(split, trial.plan, change=trial.changed).model
    users, items = (table.weight.detach().numpy() for table in (model.users, model.items))
    chosen = set()
    log = split.train_and_valid()
    for item in range(log.num_items):
        mine = log.item == item
        if mine.any():
            predicted = users[log.user[mine]] @ items[: model.items.num_rows].T
            losses = ((predicted - log.target[mine, None]) ** 2).sum(0)
            chosen.add(int(np.argmin(losses)))
    share = left_empty(model, split)
    assert share == pytest.approx(1 - len(chosen) / model.items.num_rows)
    assert 0 <= share < 1


def test_both_rows_are_read_off_the_same_trials(tmp_path):
    entries = by_place(INSIDE)
    known = CellFile(None)
    empty = "clusters that nobody would choose"
    cell = small(entries["λ₁/λ₂", "ml-100k 1 %"], steps=40).cell()
    found = INSIDE.run(cell)
    assert found["ratio"] is None or found["ratio"] > 1
    assert found["empty"] == INSIDE.measured(entries[empty, "ml-100k 1 %"], found)
    for (_, column), entry in entries.items():
        assert entry.trial == entries["λ₁/λ₂", column].trial
        for trial in INSIDE.trials(entry, known, quick=True):
            made = {**found, "ratio": 90.0, "empty": 0.125, "test": {"mse": 1.0}}
            known.keep(trial.cell(), made)
    told = INSIDE.report(known, tmp_path, quick=True).tables[0]
    assert told.rows[0][:2] == ["λ₁/λ₂", "90.0000 (1 fold)"]
    assert told.rows[1][:2] == [empty, "0.1250 (1 fold)"]
