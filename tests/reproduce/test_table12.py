import numpy as np
import pytest
import torch

from celrec.offline.fitting import fit
from reproduce import table12 as module
from reproduce.table12 import EXPERIMENTS, retrained
from tests.reproduce.entries import by_place, small

TABLE = EXPERIMENTS["table12"]
SOLVERS = ("least squares", "gradient descent")
pytestmark = pytest.mark.usefixtures("all_data_are_small")


def test_the_papers_numbers_stand_beside_gradient_descent():
    entries = by_place(TABLE)
    assert entries["CEL, gradient descent", "ml-100k 100 %"].paper == 0.8671
    assert entries["CEL, gradient descent", "ml-1m 1 %"].paper == 0.7858
    assert entries["Retrained, gradient descent", "ml-1m 0.5 %"].paper == 0.7927
    assert entries["Retrained, least squares", "ml-1m 0.5 %"].paper is None
    assert len(entries) == 20


def test_both_rows_are_read_off_the_same_trials():
    entries = by_place(TABLE)
    for (row, column), entry in entries.items():
        same = entries[row.replace("Retrained", "CEL"), column]
        assert entry.trial == same.trial
        assert entry.trial.plan.personalise == ("all" if "100 %" in column else "none")
    assert not any("100 %" in column for row, column in entries if "Retrained" in row)
    found = {"test": {"mse": 1.0}, "retrained": 2.0}
    places = [(f"{row}, least squares", "ml-1m 1 %") for row in ("CEL", "Retrained")]
    assert [TABLE.measured(entries[place], found) for place in places] == [1.0, 2.0]
    assert np.isnan(TABLE.measured(entries[places[1]], {**found, "retrained": None}))


@pytest.mark.parametrize("solver", SOLVERS)
def test_retraining_keeps_the_clusters_and_takes_as_many_steps_for_other_rows(solver, monkeypatch):
    trial = small(by_place(TABLE)[f"CEL, {solver}", "ml-100k 0.5 %"], steps=90)
    split = trial.split()
    fitted = fit(split, trial.plan, change=trial.changed)
    steps = []
    whole = module.OfflineTraining.run
    monkeypatch.setattr(
        module.OfflineTraining,
        "run",
        lambda training: steps.extend(record.step for record in whole(training)),
    )
    model = retrained(trial, fitted, split)
    assert steps == [fitted.steps]
    assert torch.equal(model.items.assignment[:-1], fitted.model.items.assignment[:-1])
    assert model.items.num_clusters == fitted.model.items.num_clusters == 8
    assert not torch.allclose(model.items.weight, fitted.model.items.weight, atol=1e-3)
    errors = [
        float(((one.predict(split.test).numpy() - split.test.target) ** 2).mean())
        for one in (model, fitted.model)
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.2)
    assert errors[0] < np.var(split.test.target)


def test_a_cell_has_both_errors_and_a_personalised_one_only_the_first():
    entries = by_place(TABLE)
    found = TABLE.run(small(entries["CEL, least squares", "ml-100k 0.5 %"], steps=12).cell())
    assert found["retrained"] != found["test"]["mse"]
    assert found["retrained"] == pytest.approx(found["test"]["mse"], rel=0.2)
    whole = small(entries["CEL, least squares", "ml-100k 100 %"], steps=12)
    assert TABLE.run(whole.having("personal.steps", 2).cell())["retrained"] is None


def test_retraining_that_diverges_is_no_number(monkeypatch):
    class Wild:
        def predict(self, log):
            return torch.full((len(log),), torch.nan)

    monkeypatch.setattr(module, "retrained", lambda *_: Wild())
    entry = by_place(TABLE)["CEL, least squares", "ml-100k 0.5 %"]
    assert TABLE.run(small(entry, steps=4).cell())["retrained"] is None
