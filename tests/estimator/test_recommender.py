import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import celrec
from celrec import CelrecError, Recommender
from celrec.cli.main import main
from tests.estimator.small import SMALL

KINDS = {
    "polars": lambda frame: frame,
    "lazy": lambda frame: frame.lazy(),
    "pandas": lambda frame: frame.to_pandas(),
    "arrow": lambda frame: frame.to_arrow(),
}
TYPES = {
    "polars": pl.DataFrame,
    "lazy": pl.LazyFrame,
    "pandas": pd.DataFrame,
    "arrow": pa.Table,
}


def as_frame(table):
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    return pl.DataFrame(table)


def brute_force(rec, user, seen, k):
    """By predictions for all items, popularity, and the order of first appearance."""
    items = rec.run.items
    pairs = {"user": [user] * len(items), "item": items["id"]}
    scores = np.array(rec.predict(pairs)["prediction"])
    popular, order = items["interactions"].to_numpy(), np.arange(len(items))
    best = np.lexsort((order, -popular, -scores))
    ids = items["id"].to_list()
    return [ids[place] for place in best if ids[place] not in seen][:k]


# References.


def test_predictions_are_the_models_own(log, rec):
    run = rec.run
    known = celrec.read(log, like=run.known)
    expected = run.model.predict(known).numpy()
    assert rec.predict(log)["prediction"].to_numpy() == pytest.approx(expected, abs=1e-6)
    # Targets are not looked at.
    odd = log.with_columns(rating=pl.lit(None, pl.Float64))
    assert rec.predict(odd)["prediction"].to_list() == expected.tolist()


def test_recommendations_are_the_best_of_all_predictions(log, rec):
    for user in (0, 3, 17):
        seen = set(log.filter(pl.col("user") == user)["item"])
        assert rec.recommend(user, k=5)["item"].to_list() == brute_force(rec, user, seen, 5)
        everything = rec.recommend(user, k=7, with_seen=True)
        assert everything["item"].to_list() == brute_force(rec, user, set(), 7)
        scores = rec.predict(everything)["prediction"]
        assert everything["score"].to_numpy() == pytest.approx(scores.to_numpy(), abs=1e-5)


def test_all_users_are_asked_for_if_nobody_is_named(log, rec):
    every = rec.recommend(k=2)
    assert every["user"].unique(maintain_order=True).to_list() == (
        log["user"].unique(maintain_order=True).to_list()
    )
    parts = pl.concat(rec.recommend_in_parts(k=2))
    assert parts.equals(every)
    for user in (5, 9):
        one = rec.recommend(user, k=2)["item"].to_list()
        assert one == every.filter(pl.col("user") == user)["item"].to_list()
    assert rec.recommend([9, 5], k=2)["user"].to_list() == [9, 9, 5, 5]


def test_allowed_and_banned_items_narrow_the_choice(rec):
    best = rec.recommend(3, k=4, with_seen=True)["item"].to_list()
    banned = rec.recommend(3, k=3, with_seen=True, banned=best[:1])["item"].to_list()
    assert banned == best[1:]
    allowed = rec.recommend(3, k=3, with_seen=True, allowed=[best[3], best[1], "?"])
    assert allowed["item"].to_list() == [best[1], best[3]]
    assert rec.recommend(3, k=1, with_seen=True, ties="recency")["item"].len() == 1


def test_newcomers_get_what_the_model_has_for_them(rec):
    one = rec.recommend(["nobody", "nobody else"], k=3)
    assert one["user"].unique(maintain_order=True).to_list() == ["nobody", "nobody else"]
    first = one.filter(pl.col("user") == "nobody")["item"].to_list()
    assert first == rec.recommend(-77, k=3)["item"].to_list()
    assert first == brute_force(rec, "nobody", set(), 3)


def test_clusters_similar_and_explain_agree(rec):
    clusters = rec.clusters(members=99)
    assert clusters["members"].sum() == 30
    assert clusters["interactions"].sum() == 2_000
    assert clusters["mean_target"].is_sorted(descending=True)
    [mates] = [names for names in clusters["examples"].to_list() if "item 3" in names]
    similar = rec.similar("item 3", k=len(mates) - 1)
    assert similar["item"].unique().to_list() == ["item 3"]
    why = rec.explain("item 3", user=5)
    assert why.members == len(mates)
    assert why.score == pytest.approx(
        rec.predict({"user": [5], "item": ["item 3"]})["prediction"][0]
    )
    if len(why.weights) < 2:  # only where an item is in one cluster are these the nearest
        assert set(similar["similar"]) == set(mates) - {"item 3"}


def test_users_are_clustered_where_they_are(live, fitted):
    assert live.clusters("users")["members"].sum() == 40
    with pytest.raises(CelrecError, match="the users are not clustered"):
        fitted.clusters("users")


def test_what_evaluate_tells_is_what_the_program_prints(log, rec, tmp_path, capsys):
    found = rec.evaluate(log, k=4)
    rec.save(tmp_path / "run")
    log.write_csv(tmp_path / "log.csv")
    words = ["evaluate", str(tmp_path / "run"), str(tmp_path / "log.csv"), "-k", "4", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("run") == str(tmp_path / "run")
    assert told == found
    predicted = rec.predict(log)["prediction"]
    assert found["test"]["mse"] == pytest.approx(
        ((predicted - log["rating"]) ** 2).mean(), rel=1e-5
    )


# Kinds in, kinds out.


@pytest.mark.parametrize("kind", KINDS)
def test_tables_come_out_as_they_went_in(log, fitted, live, kind):
    made = Recommender(**SMALL).fit(KINDS[kind](log))
    online = Recommender(**SMALL).partial_fit(KINDS[kind](log))
    for mine, plain in ((made, fitted), (online, live)):
        for table, expected in (
            (mine.recommend([3, 4], k=2), plain.recommend([3, 4], k=2)),
            (mine.similar(["item 3"], k=2), plain.similar(["item 3"], k=2)),
            (mine.clusters(), plain.clusters()),
            (next(mine.recommend_in_parts(k=1)), plain.recommend(k=1)),
        ):
            assert isinstance(table, TYPES[kind])
            if kind != "pandas":
                assert as_frame(table).equals(expected)
            else:
                assert list(table.columns) == expected.columns
                assert table.iloc[:, 0].tolist() == expected.to_series(0).to_list()
    for other in KINDS:  # predictions are of the kind that was asked with
        table = made.predict(KINDS[other](log[:5]))
        assert isinstance(table, TYPES[other])
        assert as_frame(table).columns == ["user", "item", "rating", "prediction"]
    columns = made.predict({"user": [1], "item": ["item 1"]})
    assert [type(columns[name]) for name in columns] == [list] * 3


def test_a_pandas_table_keeps_its_index_and_other_columns(fitted):
    pairs = pd.DataFrame(
        {"item": ["item 1", "item 2"], "why": ["a", "b"], "user": [3, 4]}, index=["x", "y"]
    )
    told = fitted.predict(pairs)
    assert told.index.tolist() == ["x", "y"]
    assert told.columns.tolist() == ["item", "why", "user", "prediction"]
    assert "prediction" not in pairs.columns


def test_paths_and_logs_are_answered_in_polars(log, fitted, tmp_path):
    log.write_csv(tmp_path / "log.csv")
    for source in (tmp_path / "log.csv", str(tmp_path / "log.csv"), celrec.read(log)):
        made = Recommender(**SMALL).fit(source)
        assert made.recommend(3, k=2).equals(fitted.recommend(3, k=2))
        told = made.predict(source)
        assert told["prediction"].to_list() == fitted.predict(log)["prediction"].to_list()


def test_pandas_columns_of_all_kinds_are_ids(log):
    plain = log[:400].to_pandas()
    expected = Recommender(**SMALL).fit(log[:400]).recommend([3, 4], k=2)
    for dtypes in (
        {"user": "Int64", "item": "category"},
        {"user": "int32", "item": "string"},
        {"user": "float64", "rating": "Float64"},
        {"item": "object", "rating": "int8"},
    ):
        rec = Recommender(**SMALL).fit(plain.astype(dtypes))
        found = rec.recommend(pd.Series([3, 4]).astype(dtypes.get("user", "int64")), k=2)
        if "rating" not in dtypes:
            assert found["item"].tolist() == expected["item"].to_list()
        assert found["user"].tolist() == [3, 3, 4, 4]
    texts = plain.assign(user=plain["user"].map("u{}".format).astype("category"))
    rec = Recommender(**SMALL).fit(texts)
    found = rec.recommend(texts["user"].iloc[:2].drop_duplicates(), k=2)
    assert set(found["user"]) <= set(texts["user"])


def test_named_columns_hold_for_later_tables(log):
    odd = log.rename({"user": "who", "item": "what", "rating": "worth"})
    names = {"user": "who", "item": "what", "target": "worth"}
    rec = Recommender(**SMALL).fit(odd, **names)
    assert rec.predict(odd)["prediction"].len() == len(odd)
    assert rec.predict(log)["prediction"].len() == len(odd)  # where they are not, names are guessed
    assert rec.evaluate(odd)["rows"] == len(odd)
    live = Recommender(**SMALL).partial_fit(odd, **names).partial_fit(odd[:10])
    assert live.predict(odd, user="who")["prediction"].len() == len(odd)


# Whatever the events are.

IDS = st.one_of(st.integers(-(2**40), 2**40), st.sampled_from(["a", "b", "007", "7", "é ", "-1"]))
EVENTS = st.lists(
    st.tuples(IDS, st.integers(0, 9), st.floats(-5, 5, width=32)), min_size=1, max_size=60
)


@settings(deadline=None, max_examples=25)
@given(EVENTS, st.integers(1, 12), st.sampled_from(["ratings", "events"]))
def test_lists_are_sorted_new_to_the_user_and_of_known_items(rows, k, kind):
    users, items, ratings = (list(column) for column in zip(*rows, strict=True))
    users = [str(user) for user in users]
    table = {"user": users, "item": items}
    if kind == "ratings":
        table["rating"] = ratings
    rec = Recommender(rank=2).partial_fit(table)
    lists = rec.recommend(k=k)
    known, seen = set(items), {}
    for user, item in zip(users, items, strict=True):
        seen.setdefault(user, set()).add(item)
    for user, mine in seen.items():
        told = lists.filter(pl.col("user").cast(pl.String) == user)
        answers = told["item"].to_list()
        assert len(answers) == len(set(answers)) == min(k, len(known - mine))
        assert set(answers) <= known - mine
        assert told["place"].to_list() == list(range(1, len(answers) + 1))
        assert told["score"].is_sorted(descending=True)
    everything = rec.recommend(users[0], k=99, with_seen=True)
    assert set(everything["item"]) == known
    predicted = rec.predict({"user": everything["user"], "item": everything["item"]})["prediction"]
    assert everything["score"].to_numpy() == pytest.approx(np.array(predicted), rel=1e-4, abs=1e-4)
    assert rec.run.users["interactions"].sum() == len(rows)
