import inspect
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from celrec import CelrecError, Plan, Recommender
from celrec.config.options import (
    ONLINE,
    OPTIONS,
    PLAN_OPTIONS,
    RECOMMENDER,
    find_option,
    given_plan_options,
    online_defaults,
    options_of,
    renamed,
)

WRITER = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "write_options.py"))


def test_the_fields_of_a_plan_are_the_options_that_say_so():
    assert {field.name: field.default for field in fields(Plan)} == {
        name: OPTIONS[name].default for name in PLAN_OPTIONS
    }
    hints = inspect.get_annotations(Plan, eval_str=True)
    for name in PLAN_OPTIONS:
        option = OPTIONS[name]
        optional = option.type | None if option.default is None else option.type
        assert hints[name] == optional, name


def test_the_arguments_of_the_estimator_are_the_options_that_say_so():
    parameters = inspect.signature(Recommender, eval_str=True).parameters
    assert list(parameters) == [option.name for option in options_of(RECOMMENDER)]
    for name, parameter in parameters.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is None
        assert parameter.annotation == OPTIONS[name].type | None


def test_generated_text_is_up_to_date():
    remedy = "run python docs/write_options.py"
    assert WRITER["PAGE"].read_text() == WRITER["page"](), remedy
    text = WRITER["RECOMMENDER"].read_text()
    assert WRITER["with_arguments"](text) == text, remedy
    assert text.count("    Args:\n        model: ") == 1


def test_the_default_of_a_place_is_a_value_that_the_option_may_have():
    for option in OPTIONS.values():
        option.check(option.default)
        for value in option.places.values():
            option.check(value)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("side", "left", "side must be one of items, users, both, not 'left'"),
        ("model", "tree", "model must be one of nmf, mf, deepfm"),
        ("loss", "hinge", "loss must be one of squared-error"),
        ("rank", 0, "rank must be positive, not 0"),
        ("penalty", float("inf"), "penalty must be positive, not inf"),
        ("seed", -1, "seed must lie in 0"),
        ("negatives", -1, "negatives must not be negative, not -1"),
        ("checkpoint_every", 0, "checkpoint_every must be at least 1, not 0"),
    ],
)
def test_values_out_of_range_are_errors(name, value, problem):
    with pytest.raises(CelrecError, match=problem):
        find_option(name).check(value)
    find_option(name).check(None)


def test_options_that_are_not_given_are_left_to_the_data():
    assert given_plan_options({"model": None, "seed": 0, "window": 5}) == {"seed": 0}


def test_an_online_run_records_what_it_was_started_with():
    assert set(PLAN_OPTIONS) & set(online_defaults()) == set(PLAN_OPTIONS) - {
        "budget",
        "levels",
        "start",
        "frozen",
        "features",
    }
    assert online_defaults().keys() <= {option.name for option in options_of(ONLINE)}
    assert "checkpoint_every" not in online_defaults()


def test_settings_of_earlier_versions_have_the_names_of_today():
    assert renamed({"forget_after": "9d", "batch": 5}) == {"evict_after": "9d", "batch": 5}
