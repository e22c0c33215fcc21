import json

import pytest

from celrec.evaluation.cell_file import CellFile
from reproduce import table4 as module
from reproduce.conversions import RATES
from reproduce.table4 import EXPERIMENTS, Table4

TABLE = EXPERIMENTS["table4"]
PAPER = (87.09, 86.80, 86.55, 86.46, 87.78, 87.70)
LINES = [
    ("full", None),
    *(("modulo", rows) for rows in (10**6, 10**5, 10**4)),
    *(("cel-lite hard", rows) for rows in (10**5, 10**4)),
    ("cel-lite", None),
]


def made_up(auc, rows=(100, 100)):
    sizes = dict.fromkeys(("table", "index", "training", "beside", "peak"), 2_500_000)
    times = {"events": 1000, "seconds": 0.5}
    return {"auc": auc, "auc_cold": 60.0, "rows": rows, "ids": [13_000, 40_000], **sizes, **times}


def chosen(best):
    """All cells of the choice of rates finished, `best` being the best rate of all methods."""
    known = CellFile(None)
    for cell in TABLE.cells(known, quick=False):
        known.keep(cell, made_up(70.0 if cell["rate"] == best else 65.0))
    return known


def test_rates_are_chosen_on_a_smaller_stream_then_all_is_run_once():
    first = TABLE.cells(CellFile(None), quick=False)
    assert {(cell["scale"], cell["seed"]) for cell in first} == {(0.01, 1)}
    assert [(cell["method"], cell["rate"]) for cell in first] == [
        (method, rate) for method, _ in LINES for rate in RATES
    ]
    rows = [cell["rows"] for cell in first[:: len(RATES)]]
    assert rows == [None if many is None else many // 100 for _, many in LINES]
    known = chosen(3.0)
    later = TABLE.cells(known, quick=False)[len(first) :]
    assert [(cell["method"], cell["rows"], cell["rate"]) for cell in later] == [
        (*line, 3.0) for line in LINES
    ]
    assert {(cell["scale"], cell["seed"]) for cell in later} == {(1.0, 0)}


def test_nothing_is_run_at_full_scale_before_all_rates_of_a_method_are_tried():
    known = CellFile(None)
    first = TABLE.cells(known, quick=False)
    for cell in first[: len(RATES) - 1]:
        known.keep(cell, made_up(70.0))
    assert TABLE.cells(known, quick=False) == first
    known.keep(first[len(RATES) - 1], {"diverged": "it did", "peak": 1})
    assert [cell["method"] for cell in TABLE.cells(known, quick=False)[len(first) :]] == ["full"]


def test_what_is_quick_is_a_hundredth_with_nothing_chosen():
    cells = TABLE.cells(CellFile(None), quick=True)
    assert [(cell["method"], cell["rate"], cell["scale"]) for cell in cells] == [
        (method, 1.0, 0.01) for method, _ in LINES
    ]


@pytest.mark.parametrize("place", range(len(LINES)), ids=lambda place: str(LINES[place]))
def test_every_method_runs_on_the_same_stream(place, monkeypatch):
    monkeypatch.setattr(module, "TUNED_AT", 1e-4)
    cell = TABLE.cells(CellFile(None), quick=True)[place]
    found = TABLE.run(cell)
    assert json.loads(json.dumps(found)) == found
    assert 50 < found["auc"] < 75
    assert found["events"] == 20_000
    assert found["ids"] == pytest.approx([1300, 4000], rel=0.1)
    method, rows = LINES[place]
    there = {"full": found["ids"], "cel-lite": [32, 32]}.get(method)
    assert found["rows"] == there or max(found["rows"]) <= rows * 1e-4


def test_the_stream_is_at_the_scale_of_the_paper_and_as_dense_when_it_is_smaller():
    large, small = module.make_stream(1.0, 0), module.make_stream(0.01, 3)
    assert large.events == 200_000_000
    for name in ("events", "users", "items", "user_clusters", "item_clusters"):
        assert getattr(small, name) == getattr(large, name) // 100
    assert (small.seed, small.own) == (3, large.own)


def test_a_report_stands_beside_the_paper_and_says_who_is_better(tmp_path):
    known = chosen(0.3)
    areas = dict(zip(LINES, (70.0, 69.0, 68.0, 67.0, 71.5, 69.25), strict=False))
    for cell in TABLE.cells(known, quick=False):
        if cell["scale"] == 1.0 and (cell["method"], cell["rows"]) in areas:
            auc = areas[cell["method"], cell["rows"]]
            known.keep(cell, made_up(auc, [10, 10] if cell["rows"] == 10**4 else [100, 100]))
    report = TABLE.report(known, tmp_path, quick=False)
    table, choices = report.tables
    for row, (line, auc), theirs in zip(table.rows, areas.items(), PAPER, strict=False):
        assert row[0] == line[0]
        assert row[3] == f"{auc:.2f} [{theirs:.2f}]"
    assert [row[1] for row in table.rows] == ["all", "1m", "100k", "10k", "100k", "10k", "preset"]
    assert table.rows[4] == [
        *("cel-lite hard", "100k", "100 + 100", "71.50 [87.78]", "+1.50", "60.00"),
        *(["2.5"] * 5),
        *("2,000", "0.3"),
    ]
    assert table.rows[0][4] == ""
    assert table.rows[6] == ["cel-lite", "preset", *["–"] * 11]
    assert choices.rows[0] == ["full", "all", "65.00", "**70.00**", *["65.00"] * 3]
    assert report.notes[-1] == (
        "The paper has +0.61 points with 2,650 times fewer rows. Here cel-lite hard 100k beats the "
        "full table: +1.50 points with 265 times fewer rows; cel-lite hard 10k does not beat the "
        "full table: -0.75 points with 2,650 times fewer rows."
    )
    assert any("synthetic" in note for note in report.notes)
    assert report.missing == 1


def test_what_diverged_is_said_to(tmp_path):
    known = CellFile(None)
    for cell in TABLE.cells(known, quick=True):
        known.keep(cell, {"diverged": "it did", "peak": 1})
    report = TABLE.report(known, tmp_path, quick=True)
    (table,) = report.tables
    assert [row[3] for row in table.rows[:2]] == ["diverged [87.09]", "diverged [86.80]"]
    assert report.missing == 0
    assert report.notes[-1].startswith("Quick: a hundredth of the scale")


def test_a_smaller_table_is_run_at_its_scale():
    known = chosen(1.0)
    assert {cell["scale"] for cell in Table4(0.1).cells(known, quick=False)} == {0.01, 0.1}
    assert TABLE.large
