import numpy as np
import pytest
import torch

from celrec.cel.split import Splitter
from celrec.evaluation.cell_file import CellFile
from celrec.offline.fitting import fit
from reproduce.claims import EXPERIMENTS, left_empty, ratios_at_splits
from tests.reproduce.entries import by_place, small

pytestmark = pytest.mark.usefixtures("all_data_are_small")
STARTS, INSIDE = EXPERIMENTS["claims-starts"], EXPERIMENTS["claims-inside"]
EMPTY = "clusters that nobody would choose"


def test_starts_differ_in_nothing_else():
    entries = by_place(STARTS)
    assert len(entries) == 16
    one = entries["M₀ = 1, least squares", "ml-1m"].trial
    ten = entries["M₀ = 10, least squares", "ml-1m"].trial
    assert (one.plan.start, ten.plan.start) == (None, "random:10")
    assert one == ten.having("plan.start", None)
    for (row, column), entry in entries.items():
        solver = row.partition(", ")[2]
        assert entry.tuned == entries[f"M₀ = 1, {solver}", column].trial


def test_a_full_table_and_clusters_have_the_same_solver_and_their_own_penalties():
    entries = by_place(EXPERIMENTS["claims-full"])
    assert len(entries) == 8
    for (row, column), entry in entries.items():
        plan = entry.trial.plan
        full, solver = row.startswith("Full"), row.partition(", ")[2]
        assert entry.trial.data == column
        assert entry.tuned == entry.trial
        assert (plan.embedding, plan.personalise) == (("full", "none") if full else ("cel", "all"))
        assert plan.preset == ("paper" if solver == "gradient descent" else "least-squares")
        assert (entry.paper is None) == (plan.preset == "least-squares")
    assert entries["Full table, gradient descent", "ml-1m"].paper == 0.8357
    assert entries["CEL, gradient descent", "ml-100k"].paper == 0.8602


@pytest.mark.parametrize("size", ["5 %", "1 %"])
def test_empty_clusters_are_those_that_no_item_fits_best(size):
    trial = small(by_place(INSIDE)[EMPTY, f"ml-100k {size}"], steps=69, validate_every=23)
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


def test_ratios_are_those_of_the_gradients_whenever_a_cluster_is_split(monkeypatch):
    seen = []
    usual = Splitter.leaving

    def watched(self, members, generator):
        leaving = usual(self, members, generator)
        seen.append((members.gradients.double(), leaving))
        return leaving

    monkeypatch.setattr(Splitter, "leaving", watched)
    trial = small(by_place(INSIDE)[EMPTY, "ml-100k 1 %"], steps=60)
    trial = trial.having("plan.rank", 4)
    found = ratios_at_splits(trial, 60, trial.split())
    assert len(seen) == 6  # one every ten steps
    expected = {"none": [], "centre": [], "z-score": []}
    for gradients, leaving in seen:
        assert 0 < leaving.sum() < len(leaving)
        if len(gradients) <= 4:
            continue
        centred = gradients - gradients.mean(0)
        scaled = centred / centred.std(0, correction=0)
        for name, matrix in zip(expected, (gradients, centred, scaled), strict=True):
            values = torch.linalg.eigvalsh(matrix.T @ matrix)
            expected[name].append(float(values[-1] / values[-2]))
    assert len(expected["none"]) > 2
    assert found == pytest.approx({n: np.median(each) for n, each in expected.items()}, rel=1e-6)


def test_all_rows_are_read_off_the_same_trials(tmp_path):
    entries = by_place(INSIDE)
    known = CellFile(None)
    cell = small(entries[EMPTY, "ml-100k 1 %"], steps=40).having("plan.rank", 4).cell()
    found = INSIDE.run(cell)
    assert all(ratio > 1 for ratio in found["ratios"].values())
    assert found["empty"] == INSIDE.measured(entries[EMPTY, "ml-100k 1 %"], found)
    for (_, column), entry in entries.items():
        assert entry.trial == entries[EMPTY, column].trial
        for trial in INSIDE.trials(entry, known, quick=True):
            ratios = {"none": 90.0, "centre": 30.0, "z-score": 20.0}
            made = {**found, "ratios": ratios, "empty": 0.125, "test": {"mse": 1.0}}
            known.keep(trial.cell(), made)
    told = INSIDE.report(known, tmp_path, quick=True).tables[0]
    assert [row[:2] for row in told.rows] == [
        ["λ₁/λ₂, gradients as they are", "90.0000 (1 fold)"],
        ["λ₁/λ₂, centred", "30.0000 (1 fold)"],
        ["λ₁/λ₂, standardised", "20.0000 (1 fold)"],
        [EMPTY, "0.1250 (1 fold)"],
    ]
