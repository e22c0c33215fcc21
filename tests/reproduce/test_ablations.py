import pytest

from reproduce.ablations import DESCENT, LEAST_SQUARES, ROWS, plain, theirs


def test_ratios_are_of_the_films_that_the_paper_counts():
    for data, films in (("ml-100k", 1682), ("ml-1m", 3952)):
        for ratio, rows in ROWS[data].items():
            share = float(ratio.removesuffix(" %")) / 100
            assert int(rows) == pytest.approx(share * films, rel=0.06)


def test_the_plain_trial_has_nothing_ablated():
    trial = plain("ml-100k", DESCENT)
    assert (trial.plan.compression, trial.plan.preset, trial.change) == ("17", "paper", {})
    assert plain("ml-1m").plan.preset == "least-squares"
    assert plain("ml-1m", LEAST_SQUARES, "din").plan.model == "din"


def test_numbers_of_the_paper_are_of_gradient_descent():
    assert theirs(DESCENT, 0.5) == 0.5
    assert theirs(LEAST_SQUARES, 0.5) is None
