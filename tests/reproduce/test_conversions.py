import json

import numpy as np
import pytest

from celrec import Plan
from celrec.evaluation.cell_file import CellFile
from reproduce import conversions as module
from reproduce import presence
from reproduce.conversions import FURTHER_RATES, RATES, SEEDS, Conversions, Line
from reproduce.planted_conversions import planted_conversions
from reproduce.table3 import EXPERIMENTS

LINES = [
    Line("planted", "mf", "full", "10%"),
    Line("planted", "mf", "cel-lite", "10%", paper=70.21),
    Line("amazon-electronics", "mf", "full"),
]
TABLE = Conversions("a-table", "A table", LINES, notes=["A note."])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    log = planted_conversions(rows=3000, users=60, items=30)
    monkeypatch.setattr(module, "planted_conversions", lambda: log)
    monkeypatch.setattr(presence, "find_dataset", lambda _: None)
    module.load_split.cache_clear()
    yield
    module.load_split.cache_clear()


def test_a_rate_is_chosen_then_seeds_are_trained():
    known = CellFile(None)
    first = TABLE.cells(known, quick=False)
    assert [(cell["method"], cell["rate"]) for cell in first] == [
        (method, rate) for method in ("full", "cel-lite") for rate in RATES
    ]
    for cell in first:
        loss = {0.1: None, 3.0: 0.4}.get(cell["rate"], 0.5)
        # Of equal losses the first is taken: it is not at an end here.
        loss = loss if cell["method"] == "full" else 0.7 + (cell["rate"] == 0.1)
        known.keep(cell, {"valid": loss})
    later = TABLE.cells(known, quick=False)[len(first) :]
    assert [(cell["method"], cell["rate"], cell["seed"]) for cell in later] == [
        (method, rate, seed)
        for seed in range(SEEDS)
        for method, rate in (("full", 3.0), ("cel-lite", 0.3))
    ]


@pytest.mark.parametrize(("sought", "tried"), [(0.02, [0.03, 0.01]), (40.0, [30.0, 100.0])])
def test_beyond_the_usual_rates_one_is_sought_as_long_as_the_last_is_the_best(sought, tried):
    known, line = CellFile(None), LINES[0]
    table, asked = Conversions("a-table", "A table", [line]), []
    while missing := [c for c in table.cells(known, quick=False) if c not in known]:
        asked += missing
        for cell in missing:
            known.keep(cell, {"valid": abs(np.log(cell["rate"] / sought))})
    rates = [cell["rate"] for cell in asked if "seed" not in cell]
    assert rates == [*RATES, *tried]
    assert set(tried) <= set(FURTHER_RATES)
    assert table.rate(line, known) == tried[0]
    assert [(c["rate"], c["seed"]) for c in asked if "seed" in c] == [
        (tried[0], seed) for seed in range(SEEDS)
    ]


def test_what_is_quick_has_one_size_and_says_nothing_of_others(tmp_path):
    lines = [Line("book-crossing", "mf", "modulo", size) for size in ("10%", "5%", "2%")]
    table = Conversions("a-table", "A table", [*lines, LINES[0]])
    known = CellFile(None)
    known.keep({"data": "book-crossing"}, {})  # something is known of it
    cells = table.cells(known, quick=True)
    assert [(cell["data"], cell["compression"]) for cell in cells] == [
        *(("book-crossing", "5%"), ("planted", "10%"))
    ]
    report = table.report(known, tmp_path, quick=True)
    assert [[row[1] for row in one.rows] for one in report.tables] == [["5%"], ["100%"]]
    assert report.notes == []
    assert len(table.cells(known, quick=False)) == 2 * len(RATES)


def test_other_sizes_take_the_rate_that_is_chosen_at_the_middle_one():
    assert Line("book-crossing", "mf", "modulo", "2%", paper=1.0).tuned() == Line(
        "book-crossing", "mf", "modulo", "5%"
    )


def test_a_cell_comes_to_areas_and_bytes():
    line = LINES[1]
    found = TABLE.run({**line.cell(), "rate": 1.0, "seed": 1})
    assert json.loads(json.dumps(found)) == found
    assert found["seen"] > 60
    assert 0 < found["cold"] < 100
    assert found["index"] > found["table"] > 0
    assert len(found["rows"]) == 2
    quick = TABLE.run({**line.cell(), "rate": 1.0, "seed": 1, "quick": True})
    assert quick["passes"] == 1


def test_areas_are_of_pairs_that_occur_in_training_and_cold_ones_among_them():
    split = module.load_split("planted")
    found = TABLE.run({**LINES[0].cell(), "rate": 1.0, "seed": 0})
    fitted = module.fit(split, LINES[0].plan(1.0, 0))
    scores = fitted.model.predict(split.test).numpy()
    learned, test = split.train_and_valid(), split.test
    least = np.minimum(learned.user_counts[test.user], learned.item_counts[test.item])
    wins = {"seen": [], "cold": []}
    for a in np.flatnonzero((test.target == 1) & (least > 0)):
        for b in np.flatnonzero((test.target == 0) & (least > 0)):
            win = (scores[a] > scores[b]) + 0.5 * (scores[a] == scores[b])
            wins["seen"].append(win)
            if max(least[a], least[b]) <= 5:
                wins["cold"].append(win)
    assert found["seen"] == pytest.approx(100 * np.mean(wins["seen"]))
    assert found["cold"] == pytest.approx(100 * np.mean(wins["cold"]))


def test_a_rate_is_validated_on_training_data_only():
    found = TABLE.run({**LINES[0].cell(), "rate": 1.0})
    assert set(found) == {"valid"}


def test_a_report_shows_means_over_seeds(tmp_path):
    known = CellFile(None)
    for cell in TABLE.cells(known, quick=False):
        known.keep(cell, {"valid": abs(cell["rate"] - 1)})
    made = {"rows": [4, 2], "table": 10, "index": 2000, "training": 3000, "passes": 3}
    for cell in TABLE.cells(known, quick=False):
        if "seed" in cell and cell["method"] == "cel-lite":
            known.keep(cell, {"seen": 70.0 + cell["seed"], "cold": 60.0, **made})
    report = TABLE.report(known, tmp_path, quick=False)
    (table,) = report.tables
    assert table.rows[0] == ["full", "100%", "8", *["–"] * 8]
    assert table.rows[1] == [
        *("cel-lite", "10%", "8", "4 + 2", "72.00 ± 0.71 [70.21]", "60.00 ± 0.00"),
        *("10", "2,000", "3,000", "1", "3"),
    ]
    assert report.missing == SEEDS
    note, space, absent = report.notes
    assert (note, absent) == ("A note.", "amazon-electronics is not here: it is left out.")
    assert "among 0.1, 0.3, 1, 3, 10, and beyond these (0.0003, 0.001" in space


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_line_of_the_table_is_a_plan_of_its_own(experiment):
    plans = [(line.data, line.plan(1.0)) for line in experiment.lines]
    assert all(isinstance(plan, Plan) and plan.side == "both" for _, plan in plans)
    # A full table has the same rows at all sizes.
    assert len({str(plan) for plan in plans}) == len(plans)


def test_biases_have_next_to_no_factor():
    plan = Line("planted", "mf", "biases").plan(1.0)
    assert (plan.embedding, plan.preset, plan.rank) == ("full", "online", 1)
    assert Line("planted", "mf", "cel-lite hard").plan(1.0).preset == "hard"
    personal = Line("planted", "mf", "cel-lite personal").plan(1.0)
    assert (personal.preset, personal.personalise) == ("default", "50")
