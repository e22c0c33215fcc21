import pytest
import torch

from celrec.cel.split import Members
from reproduce.table10 import EXPERIMENTS
from tests.reproduce.entries import by_place, settings

TABLE = EXPERIMENTS["table10"]
SOLVERS = ("least squares", "gradient descent")


def test_the_papers_numbers_stand_beside_gradient_descent():
    entries = by_place(TABLE)
    assert entries["δ = 0, gradient descent", "ml-100k"].paper == 0.8684
    assert entries["δ = median, gradient descent", "ml-1m"].paper == 0.7807
    assert entries["δ that balances, gradient descent", "ml-1m"].paper == 0.7808
    assert entries["δ = 0, least squares", "ml-1m"].paper is None
    assert len(entries) == 12


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("row", "leaving"),
    [("δ = 0", [6]), ("δ = median", [3, 4, 5, 6]), ("δ that balances", [4, 5, 6])],
)
def test_rows_are_places_to_cut_at(solver, row, leaving):
    entries = by_place(TABLE)
    for data, rows in (("ml-100k", "34"), ("ml-1m", "80")):
        entry = entries[f"{row}, {solver}", data]
        assert entry.trial.plan.compression == rows
        assert settings(entry).splitter.method == "gpca"
        # One member pulls hard; five ratings of eleven belong to the upper three.
        members = Members(
            torch.tensor([[0.0], [0.1], [0.2], [0.3], [0.4], [0.5], [60.0]]),
            torch.tensor([1, 1, 1, 3, 1, 2, 2]),
        )
        mask = settings(entry).splitter.leaving(members, torch.Generator())
        assert torch.nonzero(mask).squeeze(1).tolist() == leaving


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_else_differs_between_rows(solver):
    entries = by_place(TABLE)
    for data in ("ml-100k", "ml-1m"):
        mine = [entry for (row, at), entry in entries.items() if at == data and solver in row]
        assert len({(entry.trial.plan, entry.tuned.plan) for entry in mine}) == 1
        assert all(set(entry.trial.change) == {"splitter.threshold"} for entry in mine)
        assert all(not entry.tuned.change for entry in mine)
