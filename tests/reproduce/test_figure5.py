import json
import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from celrec.evaluation.cell_file import CellFile
from reproduce import trial as trial_module
from reproduce.figure5 import EXPERIMENTS
from reproduce.trial import Trial
from tests.reproduce.made_up import check_cells, check_picture, finished, noise, work

pytestmark = pytest.mark.usefixtures("all_data")
FIGURE = EXPERIMENTS["figure5"]
GENRES = ["Comedy", "Drama", "War"]


def made_up(trial):
    clusters = [
        {
            "items": 100 - n,
            "ratings": 1000,
            "mean": 2.0 + 0.2 * n,
            "spread": 1.0,
            "item_spread": 0.1,
            "genres": [["Drama", 0.5, 0.1], ["War", 0.25, 0.05]],
            "titles": ["Matrix, The (1999)", f"{'Very ' * 20}Long Title (2000)"],
        }
        for n in range(10)
    ]
    entropy = 2.0 + 0.01 * noise(trial.fold) - 0.1 * (trial.plan.embedding == "cel")
    diagnostics = {
        "rating_spread": 1.01,
        "genre_entropy": entropy,
        "genre_entropy_normalised": entropy / math.log(10),
    }
    return finished(0.8, clusters=clusters, diagnostics=diagnostics, entropy_by_chance=2.2)


def slow_entropy(labels, clusters):
    entropies = []
    for genre in GENRES:
        inside = [c for c, one in zip(clusters, labels, strict=True) if genre in one]
        shares = [inside.count(c) / len(inside) for c in set(inside)]
        entropies.append(-sum(p * math.log(p) for p in shares))
    return sum(entropies) / len(entropies)


@pytest.fixture
def log_of_films(small_log, monkeypatch):
    labels = [[GENRES[n % 3]] if n % 4 else GENRES[:2] for n in range(small_log.num_items)]
    titles = [f"Film {n}" for n in range(small_log.num_items)]
    log = replace(small_log, item_features=pl.DataFrame({"title": titles, "genres": labels}))
    monkeypatch.setattr(trial_module, "load_dataset", lambda _: log)
    return log


def test_cells_are_told_apart():
    check_cells(FIGURE)
    assert len(FIGURE.cells(CellFile(None), quick=False)) == 7 * 5


def test_a_cell_of_every_method_keeps_its_clusters(log_of_films):
    labels = log_of_films.item_features["genres"].to_list()
    for cell in FIGURE.cells(CellFile(None), quick=True):
        trial = Trial.of(cell)
        small = replace(trial.plan, compression="4", rank=3)
        found = FIGURE.run(replace(trial, plan=small, change={"schedule.steps": 8}).cell())
        assert json.loads(json.dumps(found)) == found
        clusters = found["clusters"]
        assert sum(one["items"] for one in clusters) == log_of_films.num_items
        assert sum(one["ratings"] for one in clusters) == len(log_of_films) * 4 // 5
        assert 0 <= found["diagnostics"]["genre_entropy"] <= math.log(4)
        # By chance it is that of a deal of the same sizes.
        sizes = np.repeat(np.arange(len(clusters)), [one["items"] for one in clusters])
        deals = np.random.default_rng(1)
        expected = [slow_entropy(labels, deals.permutation(sizes).tolist()) for _ in range(50)]
        error = np.std(expected) * (1 / 20 + 1 / 50) ** 0.5
        assert abs(found["entropy_by_chance"] - np.mean(expected)) < 5 * error + 1e-9


def test_clusters_and_measures_are_told(tmp_path):
    report = FIGURE.report(work(FIGURE, made_up), tmp_path, quick=False)
    check_picture(report, tmp_path, "figure5")
    assert report.missing == 0
    clusters, measures = report.tables[:2]
    assert [row[0] for row in clusters.rows[:2]] == ["2.00", "2.20"]
    assert clusters.rows[0][5] == "Drama 50 % (+10), War 25 % (+5)"
    assert clusters.rows[0][6].startswith("The Matrix · Very Very")
    less = [-0.2 + 0.01 * noise(fold) for fold in range(1, 6)]
    assert measures.rows[1][-1].startswith(f"{np.mean(less):+.3f} ± ")
    assert measures.rows[0][-1].startswith(f"{np.mean(less) - 0.1:+.3f} ± ")
    assert [row[0] for row in measures.rows][:2] == ["CEL", "Modulo"]


def test_without_cel_there_are_numbers_but_no_picture(tmp_path):
    known = work(FIGURE, lambda t: None if t.plan.embedding == "cel" else made_up(t), quick=True)
    report = FIGURE.report(known, tmp_path, quick=True)
    assert (report.figures, report.missing) == ([], 1)
    assert report.tables[1].rows[0][1:] == ["–"] * 5
    assert FIGURE.report(CellFile(None), tmp_path, quick=False).figures == ()
