from dataclasses import fields

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import celrec
from celrec.config.picking import check_options, pick
from celrec.config.plan import Plan
from celrec.errors import CelrecError


def log_of(targets, items=3, **more):
    ids = np.arange(len(targets))
    table = {"user": ids, "item": ids % items, **more}
    return celrec.read(table if targets[0] is None else {**table, "rating": targets})


@pytest.mark.parametrize(
    ("targets", "loss", "negatives"),
    [
        ([1.0, 4.0, 3.0], "squared-error", 0),
        ([0.0, 4.0], "squared-error", 0),
        ([0.0, 1.0, 1.0], "cross-entropy", 0),
        ([None, None], "cross-entropy", 10),
        ([1.0, 1.0], "cross-entropy", 10),
        ([5.0, 5.0], "cross-entropy", 10),
        ([0.0, 0.0], "cross-entropy", 10),
    ],
)
def test_targets_tell_what_to_train(targets, loss, negatives):
    log = log_of(targets)
    plan, told = pick(log, {}, online=True)
    assert (plan.loss, plan.negatives, plan.online) == (loss, negatives, True)
    assert told.count("\n") == 1
    assert f"loss {loss}" in told
    offline, _ = pick(log, {})
    assert offline.only_positive == (negatives > 0)
    assert (offline.loss == "cross-entropy") == (loss == "cross-entropy" and not negatives)


CHOICES = {
    "model": ["nmf", "mf", "neumf", "deepfm", "din", "widedeep"],
    "embedding": ["cel", "cel-lite", "full", "modulo", "robe"],
    "compression": ["3", "10%", "auto"],
    "side": ["items", "users", "both"],
    "loss": ["squared-error", "cross-entropy", "ranking"],
    "negatives": [0, 1, 3],
    "positive": [3.0],
    "preset": ["default", "online", "scratch", "descent"],
    "personalise": ["none", "20"],
    "seed": [5],
}


@given(st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in CHOICES.items()}))
def test_what_was_given_always_wins(options):
    logs = [log_of([1.0, 4.0, 3.0]), log_of([0.0, 1.0]), log_of([None, None, None])]
    for log in logs:
        for online in (False, True):
            try:
                plan, _ = pick(log, options, online=online)
            except CelrecError:
                with pytest.raises(CelrecError):  # nor is it possible by itself
                    Plan(**options)
                continue
            assert {name: getattr(plan, name) for name in options} == options


@given(st.fixed_dictionaries({}, optional={n: st.sampled_from(v) for n, v in CHOICES.items()}))
def test_what_can_be_picked_is_not_complained_about_before(options):
    try:
        pick(log_of([1.0, 4.0, 3.0]), options)
    except CelrecError:
        return
    check_options(options)


def test_further_columns_are_for_networks():
    log = celrec.read(
        {"user": [1, 2], "item": [1, 2], "rating": [2.0, 4.0], "shop": ["a", "b"]}, columns=["shop"]
    )
    for online in (False, True):
        assert pick(log, {}, online=online).plan.model == "deepfm"
    assert pick(log, {"model": "neumf"}).plan.model == "neumf"


def test_large_tables_get_a_number_of_rows_and_long_logs_fewer_negatives():
    for items, rows in ((100, "20"), (399, "20"), (400, "5%"), (20_000, "5%"), (20_001, "1000")):
        assert pick(log_of([1.0, 2.0] * 10_001, items=items), {}).plan.compression == rows
    assert pick(log_of([None] * 100), {}).plan.negatives == 10
    assert pick(log_of([None] * 1_000_001), {}).plan.negatives == 3


def test_unknown_options_are_told():
    with pytest.raises(CelrecError, match="'colour' is no option; there are embedding") as error:
        check_options({"colour": 1})
    assert all(field.name in str(error.value) for field in fields(Plan))


def test_no_ratings_among_columns_is_told_so_that_they_can_be_named():
    log = celrec.read(pl.DataFrame({"user": [1, 2], "item": [1, 2], "vote": [2.0, 4.0]}))
    assert "target or --target-column" in pick(log, {}).reason
