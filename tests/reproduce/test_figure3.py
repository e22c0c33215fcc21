import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import celrec
from celrec.evaluation.cell_file import CellFile
from reproduce.figure3 import BUCKETS, EXPERIMENTS, bucket_errors
from reproduce.trial import Trial
from tests.reproduce.made_up import check_cells, check_picture, finished, noise, work

pytestmark = pytest.mark.usefixtures("all_data")
FIGURE = EXPERIMENTS["figure3"]
RATINGS = [3, 5, 9, 40, 80, 200, 400, 800, 900, 0]


def made_up(trial):
    """Personalised rows are worse for the first buckets and better for the others."""
    errors = np.linspace(1.3, 0.7, len(BUCKETS)) + 0.01 * noise(trial.fold)
    if trial.plan.personalise == "all":
        errors[:3] += 0.1
    if trial.plan.personalise != "none":
        errors[3:] -= 0.1
    if trial.plan.embedding == "prehash":
        errors += 0.05
    squares = errors * RATINGS
    buckets = {"ratings": RATINGS, "squares": squares.tolist()}
    return finished(float(squares.sum() / sum(RATINGS)), buckets=buckets)


@given(
    st.lists(st.sampled_from([0, *BUCKETS, *(b - 1 for b in BUCKETS[1:]), 9999]), min_size=2),
    st.lists(st.tuples(st.integers(-1, 1), st.floats(1, 5), st.floats(1, 5)), min_size=1),
)
def test_errors_are_sorted_into_buckets_as_one_by_one(counts, rows):
    train = celrec.read({"user": [1] * len(counts), "item": [*range(len(counts))],
                         "rating": [3.0] * len(counts)})  # fmt: skip
    items, ratings, predicted = zip(*rows, strict=True)
    test = celrec.read(
        {"user": [1] * len(rows), "item": [i if i >= 0 else 999 for i in items], "rating": ratings},
        like=train,
    )
    expected = [[0, 0.0] for _ in BUCKETS]
    for item, rating, prediction in zip(items, test.target, predicted, strict=True):
        count = counts[item] if item >= 0 else 0
        place = max(n for n, least in enumerate(BUCKETS) if least <= count)
        expected[place][0] += 1
        expected[place][1] += (prediction - float(rating)) ** 2
    found = bucket_errors(predicted, test, np.array(counts))
    assert found["ratings"] == [number for number, _ in expected]
    assert found["squares"] == pytest.approx([squares for _, squares in expected])


def test_cells_are_told_apart():
    check_cells(FIGURE)
    known = work(FIGURE, made_up)
    assert len(known) == 8 + 4 * 5  # penalties of two methods, and then all on five folds


def test_a_cell_keeps_the_errors_of_its_buckets(small_log):
    cell = Trial("ml-100k", celrec.Plan(compression="4", rank=3), quick=True).cell()
    found = FIGURE.run(cell)
    assert sum(found["buckets"]["ratings"]) == len(small_log) // 5
    mean = sum(found["buckets"]["squares"]) / sum(found["buckets"]["ratings"])
    assert found["test"]["mse"] == pytest.approx(mean, rel=1e-5)


def test_buckets_and_whom_to_personalise_are_told(tmp_path):
    report = FIGURE.report(work(FIGURE, made_up), tmp_path, quick=False)
    assert report.missing == 0
    check_picture(report, tmp_path, "figure3")
    buckets, personalising = report.tables[:2]
    assert buckets.headers[1:4] == ["0–5", "6–10", "11–20"]
    assert buckets.headers[-2:] == ["801–2000", "≥ 2001"]
    errors = [1.3 + 0.01 * noise(fold) for fold in range(1, 6)]
    spread = np.std(errors, ddof=1) / 5**0.5
    assert buckets.rows[0][1] == f"{np.mean(errors):.4f} ± {spread:.4f}"
    assert buckets.rows[0][-1] == "–"  # no test ratings there
    assert buckets.rows[-1][1] == f"{100 * 3 / sum(RATINGS):.2f} %"
    # Warm ones only: better than nobody by 0.1 in the warm buckets, than all by 0.1 in the cold.
    assert [row[0] for row in personalising.rows] == [row[0] for row in buckets.rows[:3]]
    cold = sum(RATINGS[:3])
    gains = {
        place: [
            100 * change / (sum(RATINGS) * made_up(trial)["test"]["mse"])
            for trial in (
                Trial("ml-1m", celrec.Plan(personalise=how), fold=fold) for fold in range(1, 6)
            )
        ]
        for place, how, change in (
            (2, "none", -0.1 * (sum(RATINGS) - cold)),
            (3, "all", -0.1 * cold),
        )
    }
    for place, values in gains.items():
        assert personalising.rows[2][place].startswith(f"{np.mean(values):+.2f} ± ")


def test_a_part_is_drawn_too(tmp_path):
    known = work(
        FIGURE, lambda t: made_up(t) if t.plan.embedding == "prehash" else None, quick=True
    )
    report = FIGURE.report(known, tmp_path, quick=True)
    check_picture(report, tmp_path, "figure3")
    assert report.missing > 0
    assert report.tables[0].rows[0][1:] == ["–"] * len(BUCKETS)
    assert FIGURE.report(CellFile(None), tmp_path, quick=False).figures == ()
