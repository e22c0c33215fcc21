import copy

import pytest
import torch

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.evaluation.cell_file import CellFile
from celrec.offline.factorisation_solver import initialise_factors
from celrec.offline.gradient_descent import GradientDescent
from celrec.recommender.model import Model
from reproduce.table13 import EXPERIMENTS
from reproduce.trial import Trial
from tests.reproduce.entries import by_place, settings

TABLE = EXPERIMENTS["table13"]
RATE = "solver.learning_rate"
SETTINGS = ("solver.optimiser", "solver.average", RATE)


def test_the_papers_numbers_stand_in_their_places():
    entries = by_place(TABLE)
    assert entries["GD with averaging", "1 %"].paper == 0.9022
    assert entries["GD without", "2 %"].paper == 1.019
    assert entries["Adam with averaging", "2 %"].paper == 0.9150
    assert entries["Adam without", "1 %"].paper == 0.9189
    assert {(e.trial.data, e.column, e.trial.plan.compression) for e in entries.values()} == {
        ("ml-100k", "1 %", "17"),
        ("ml-100k", "2 %", "34"),
    }
    assert len(entries) == 8


def test_each_place_chooses_a_rate_of_its_own_and_all_else_is_the_papers_loop():
    for (row, _), entry in by_place(TABLE).items():
        how = settings(entry)
        assert how.solver.optimiser == row.split()[0].lower()
        assert how.solver.average == row.endswith("with averaging")
        assert how.schedule.validate_every == 10 * (int(entry.trial.plan.compression) - 1)
        assert (how.solver.bounded, how.solver.projection, how.solver.l2) == (False, "abs", 1.0)
        tried = entry.choices(CellFile(None))
        assert list(tried) == [trial.change[RATE] for trial in tried.values()]
        for trial in tried.values():
            assert trial.validated
            assert trial.plan == entry.trial.plan
            assert {**trial.change, RATE: 0} == {**entry.trial.change, RATE: 0}
        assert entry.trial.change[RATE] in tried


@pytest.mark.usefixtures("all_data_are_small")
def test_the_rate_that_was_best_is_taken_for_that_place_only(tmp_path):
    known = CellFile(None)
    first = TABLE.cells(known, quick=False)
    assert all(Trial.of(cell).validated for cell in first)
    for cell in first:
        optimiser, average, rate = map(Trial.of(cell).value_of, SETTINGS)
        best = 1e-6 if not average and optimiser == "gd" else 0.1
        wild = optimiser == "gd" and rate > best
        known.keep(cell, {"valid": None if wild else abs(rate - best)})
    later = [Trial.of(cell) for cell in TABLE.cells(known, quick=False)[len(first) :]]
    assert len(later) == 8 * 5
    assert {tuple(map(trial.value_of, SETTINGS)) for trial in later} == {
        *(("gd", True, 3e-4), ("gd", False, 1e-6)),
        *(("adam", True, 0.1), ("adam", False, 0.1)),
    }
    names = ("rows", "table", "index", "training", "steps", "seconds")
    for trial in later:
        known.keep(trial.cell(), {"test": {"mse": 1.0}, **dict.fromkeys(names, 1)})
    *_, details = TABLE.report(known, tmp_path, quick=False).tables
    assert details.headers[2] == "learning rate"
    assert [row[2] for row in details.rows[::2]] == ["0.0003", "1e-06", "0.1", "0.1"]
    assert "The learning rate is chosen among 3e-07, 1e-06," in details.caption


def test_without_averaging_a_row_goes_as_much_farther_as_it_has_members(log_with_genres):
    entries, rate = by_place(TABLE), 1e-6
    items = ClusteredEmbedding(log_with_genres.num_items, 4, max_clusters=3)
    items.start_from(torch.arange(log_with_genres.num_items).clamp(max=2))
    model = Model(FullEmbedding(log_with_genres.num_users, 4), items)
    initialise_factors(model, torch.Generator().manual_seed(0))
    before = items.weight.detach().clone()
    gone = {}
    for row in ("GD with averaging", "GD without"):
        trial = entries[row, "1 %"].trial
        for name, value in ((RATE, rate), ("solver.l2", 0.0), ("solver.projection", "none")):
            trial = trial.having(name, value)
        one = copy.deepcopy(model)
        GradientDescent(one, log_with_genres, trial.changed(trial.plan.settings()).solver).step()
        gone[row] = one.items.weight.detach() - before
    sizes = items.sizes()[:, None]
    assert sizes.flatten().tolist() == [1, 1, log_with_genres.num_items - 2]
    torch.testing.assert_close(
        gone["GD without"], sizes * gone["GD with averaging"], rtol=1e-2, atol=1e-6
    )
    assert float(gone["GD without"].abs().max()) > 1e-3


@pytest.mark.usefixtures("all_data_are_small")
@pytest.mark.parametrize("row", ["GD without", "Adam with averaging"])
def test_rows_can_be_trained(row):
    trial = by_place(TABLE)[row, "1 %"].trial
    found = TABLE.run(trial.having("schedule.steps", 200).cell())
    assert found["test"]["mse"] > 0
    assert found["rows"] == 17
