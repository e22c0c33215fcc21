import numpy as np
import pytest

from celrec import CelrecError, Recommender
from tests.estimator.small import SMALL


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda rec, _: rec.similar("nothing"), "item 'nothing' is not known"),
        (lambda rec, _: rec.explain("nothing"), "item 'nothing' is not known"),
        (lambda rec, _: rec.recommend(3, k=0), "k must be positive"),
        (lambda rec, _: rec.recommend([3, None]), "users: some ids are missing"),
        (lambda rec, _: rec.recommend([3.0, float("nan")]), "users: some ids are missing"),
        (lambda rec, log: rec.recommend(log), "users: expected a column of ids, got a table"),
        (lambda rec, log: rec.recommend(log.to_pandas()), "users: expected a column"),
        (lambda rec, _: rec.recommend(object()), "users: expected an id or a column"),
        (lambda rec, _: rec.recommend(3, allowed=["x"]), "allowed: none of these items"),
        (lambda rec, _: rec.recommend(3, allowed=[]), "allowed: none of these items"),
        (lambda rec, _: rec.recommend(3, ties="chance"), "ties must be one of"),
        (lambda rec, _: rec.clusters("shops"), "side must be one of items, users"),
        (lambda rec, log: rec.predict(log.select("user")), "no item column among 'user'"),
        (lambda rec, _: rec.predict(7), "table: expected a path or a polars"),
        (lambda rec, log: rec.evaluate(log.drop("rating")), "no target column among"),
        (lambda rec, log: rec.evaluate(log[:0]), "no interactions in it"),
        (lambda rec, log: rec.fit(log, user="who"), "no column 'who' for the user"),
        (lambda rec, _: rec.fit("nowhere.csv"), "nowhere.csv"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(log, rec, call, told):
    before = rec.recommend(3, k=3)
    with pytest.raises(CelrecError, match=told) as error:
        call(rec, log)
    assert "\n" not in str(error.value)
    assert rec.recommend(3, k=3).equals(before)


@pytest.mark.parametrize("learn", [Recommender.fit, Recommender.partial_fit])
@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"user": [], "item": []}, "no interactions in it"),
        ({}, "no user column among"),
        ({"user": [1]}, "no item column among 'user'"),
        ({"user": [1, 2], "item": [3, None], "rating": [1, 2]}, "row 2: no item id"),
        ({"user": [1, 2], "item": [3, 4], "rating": [1.0, float("nan")]}, "row 2: target 'nan'"),
        ({"user": [1, 2], "item": [3]}, "cannot turn this table into columns"),
        ({"user": [1.5], "item": [3]}, "ids: floats with fractions"),
        ({"user": [[1]], "item": [3]}, "ids must be integers or strings"),
        (3, "expected a path or a polars, pandas or Arrow table, got int"),
        (None, "got NoneType"),
    ],
)
def test_bad_tables_are_one_line(learn, table, told):
    rec = Recommender()
    with pytest.raises(CelrecError, match=told) as error:
        learn(rec, table)
    assert "\n" not in str(error.value)
    assert repr(rec) == "Recommender(not fitted)"


def test_nothing_can_be_asked_before_something_was_learned(tmp_path):
    rec = Recommender()
    for ask in (
        lambda: rec.recommend(1),
        lambda: next(rec.recommend_in_parts(1)),
        lambda: rec.predict({"user": [1], "item": [1]}),
        lambda: rec.similar(1),
        lambda: rec.clusters(),
        lambda: rec.explain(1),
        lambda: rec.evaluate({"user": [1], "item": [1]}),
        lambda: rec.save(tmp_path / "run"),
        lambda: rec.plan,
        lambda: rec.picked,
    ):
        with pytest.raises(CelrecError, match="has learned nothing yet; call fit first"):
            ask()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "gpt"}, "model must be one of nmf, mf"),
        ({"embedding": "cell"}, "embedding must be one of cel"),
        ({"model": "nmf", "loss": "ranking"}, "loss must be one of squared-error"),
        ({"negatives": -1}, "negatives must not be negative"),
        (
            {"negatives": 2, "loss": "ranking", "model": "neumf"},
            "negatives are not for loss 'ranking'",
        ),
        ({"negatives": 2, "model": "din"}, "negatives are not for model 'din'"),
        ({"seed": -1}, "seed must lie in"),
        ({"compression": "few"}, "compression must be a share"),
    ],
)
def test_impossible_options_are_told_at_once(options, told):
    with pytest.raises(CelrecError, match=told) as error:
        Recommender(**options)
    assert "\n" not in str(error.value)


def test_one_that_was_trained_on_a_whole_log_cannot_go_on(fitted, log):
    with pytest.raises(CelrecError, match="fit with embedding='cel-lite'") as error:
        fitted.partial_fit(log)
    assert "\n" not in str(error.value)


def test_later_targets_are_like_the_first(log):
    rec = Recommender(**SMALL).partial_fit({"user": [1], "item": ["a"], "rating": [5]})
    with pytest.raises(CelrecError, match=r"several, such as .* begin with a table"):
        rec.partial_fit(log)
    rec.partial_fit({"user": [2], "item": ["a"]})
    given = Recommender(loss="squared-error", **SMALL)
    given.partial_fit({"user": [1], "item": ["a"], "rating": [5]}).partial_fit(log)
    assert given.plan.negatives == 0
    binary = Recommender(**SMALL).partial_fit(
        {"user": [1, 2], "item": ["a", "b"], "y": [0, 1]}, target="y"
    )
    assert binary.plan.loss == "cross-entropy"
    with pytest.raises(CelrecError, match="'cross-entropy' is for targets 0 and 1"):
        binary.partial_fit(log)
    with pytest.raises(CelrecError, match="no target column"):
        binary.partial_fit(log.drop("rating"))


@pytest.mark.parametrize("learn", [Recommender.fit, Recommender.partial_fit])
@pytest.mark.parametrize(
    "table",
    [
        {"user": [1], "item": ["a"]},
        {"user": [1], "item": ["a"], "rating": [3]},
        {"user": [1, 1], "item": ["a", "a"], "rating": [3, 4]},
        {"user": [1] * 20, "item": [f"{n}" for n in range(20)]},
        {"user": list(range(20)), "item": ["a"] * 20, "rating": [n % 5 for n in range(20)]},
        {"user": list(range(20)), "item": ["a"] * 20},
        {"user": [1, 2, 3], "item": [1, 2, 3], "rating": [4.0, 4.0, 4.0]},
        {"user": [1, 2, 3], "item": [1, 2, 3], "rating": [0, 1, 0]},
        {"user": [1, 2], "item": [1, 2], "rating": [-3.0, -4.0]},
    ],
)
def test_next_to_no_data_is_no_trouble(learn, table):
    rec = learn(Recommender(rank=2), table)
    pairs = {"user": table["user"], "item": table["item"]}
    assert np.isfinite(rec.predict(pairs)["prediction"]).all()
    assert len(rec.recommend(table["user"][0], with_seen=True)) >= 1
    assert len(rec.similar(table["item"][0], k=30)) == len(set(table["item"])) - 1
    assert len(rec.predict({"user": [], "item": []})["prediction"]) == 0


def test_an_unknown_option_is_an_unexpected_argument():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Recommender(colour="red")
