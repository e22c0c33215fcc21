import pytest

from reproduce.table6 import EXPERIMENTS
from tests.reproduce.entries import by_place, settings, small, validation_records

TABLE = EXPERIMENTS["table6"]
METHODS = {
    "Random split": "random",
    "User-inspired bisecting 2-means": "user-2-means",
    "Gradient bisecting 2-means": "gradient-2-means",
    "Gradient random projection": "random-projection",
    "GPCA": "gpca",
}
SOLVERS = {"least squares": "LeastSquaresConfig", "gradient descent": "DescentConfig"}
# So that all splits are soon done.
SHORT = {
    "least squares": {"growth": 0.5, "steps": 16, "validate_every": 1, "patience": 99},
    "gradient descent": {"split_every": 1, "steps": 80, "validate_every": 2, "patience": 99},
}
pytestmark = pytest.mark.usefixtures("all_data_are_small")


def test_the_papers_numbers_stand_beside_gradient_descent():
    entries = by_place(TABLE)
    for end in ("", ", never reassigned"):
        assert entries["Random split, gradient descent", f"ml-100k{end}"].paper == 0.9392
        assert entries["GPCA, gradient descent", f"ml-1m{end}"].paper == 0.7858
        assert entries["GPCA, least squares", f"ml-1m{end}"].paper is None
    place = ("Gradient bisecting 2-means, gradient descent", "ml-1m")
    assert entries[place].paper == 0.8186
    assert len(entries) == 40


@pytest.mark.parametrize(("row", "method"), METHODS.items())
@pytest.mark.parametrize(("solver", "kind"), SOLVERS.items())
def test_rows_are_ways_to_split(row, method, solver, kind):
    entries = by_place(TABLE)
    for data, rows in (("ml-100k", "17"), ("ml-1m", "40")):
        for end in ("", ", never reassigned"):
            entry = entries[f"{row}, {solver}", f"{data}{end}"]
            how = settings(entry)
            assert how.splitter.method == method
            assert type(how.solver).__name__ == kind
            assert (how.schedule.reassign_every > 0) == (end == "")
            assert (entry.trial.data, entry.trial.plan.compression) == (data, rows)
            assert entry.tuned.change == {}
            assert entry.tuned.plan == entry.trial.plan


def moved_when_grown(entry, solver):
    told = validation_records(small(entry, **SHORT[solver]))
    grown = [record.moved for record in told if record.clusters == 17]
    return sum(grown[1:])  # what moved before the first was moved by the last split, too


@pytest.mark.parametrize("solver", SOLVERS)
def test_nobody_moves_but_by_splits_where_it_says_so(solver):
    entries = by_place(TABLE)
    assert moved_when_grown(entries[f"Random split, {solver}", "ml-100k"], solver) > 0
    never = entries[f"Random split, {solver}", "ml-100k, never reassigned"]
    assert moved_when_grown(never, solver) == 0
