import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, Recommender
from celrec.cli.main import main
from celrec.config.presets import PRESETS
from celrec.runs.run_folder import load_run
from tests.estimator.small import SMALL

# Learning by and by.


def everything(rec):
    """All that an estimator that learns online is."""
    learner = rec.learner
    found = {"model": {k: v.tolist() for k, v in learner.model.state_dict().items()}}
    for name, table in learner.tables.items():
        found[name] = (table.ids.ids.to_list(), table.counts.tolist(), table.sums.tolist())
    users, items = learner.seen.events()
    return {**found, "events": learner.events, "seen": (users.tolist(), items.tolist())}


STREAMS = {
    "ratings": ({}, lambda frame: frame),
    "0 and 1": ({}, lambda frame: frame.with_columns(rating=(pl.col("rating") > 3).cast(pl.Int8))),
    "events": ({}, lambda frame: frame.drop("rating")),
    "hard": ({"preset": "hard"}, lambda frame: frame),
    "personal": ({"personalise": "5"}, lambda frame: frame),
}


@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(20, 399), max_size=2), kind=st.sampled_from(list(STREAMS)))
def test_saved_and_loaded_it_goes_on_as_if_it_had_never_stopped(log, tmp_path, cuts, kind):
    options, change = STREAMS[kind]
    rows, places = change(log[:400]), [0, *sorted(set(cuts)), 400]
    whole, parts = Recommender(**SMALL, **options), Recommender(**SMALL, **options)
    for number, (start, end) in enumerate(pairwise(places)):
        whole.partial_fit(rows[start:end])
        parts.partial_fit(rows[start:end])
        parts.save(tmp_path / "run")
        parts = Recommender.load(tmp_path / "run")
        assert everything(parts) == everything(whole), number
        assert parts.picked == whole.picked
        assert parts.plan == whole.plan
    assert parts.recommend(k=3).equals(whole.recommend(k=3))


@pytest.mark.parametrize("kind", STREAMS)
def test_it_goes_on_from_what_fit_came_to(log, tmp_path, kind):
    options, change = STREAMS[kind]
    rows = change(log)
    first = Recommender(embedding="cel-lite", side="both", **SMALL, **options).fit(rows[:1500])
    before = first.predict(rows[:50])["prediction"].to_list()
    first.save(tmp_path / "run")
    second = Recommender.load(tmp_path / "run")
    assert second.predict(rows[:50])["prediction"].to_list() == before
    assert second.recommend(k=2).equals(first.recommend(k=2))
    newer = pl.DataFrame({"user": [999, 3], "item": ["never seen", "item 3"], "rating": [1, 1]})
    for one in (first, second):
        one.partial_fit(rows[1500:]).partial_fit(newer.select(rows.columns))
    assert everything(first) == everything(second)
    known = first.run
    assert known.users["interactions"].sum() == 2_002
    assert 999 in known.users["id"]
    assert "never seen" not in first.recommend(999, k=99)["item"].to_list()
    assert first.predict(rows[:50])["prediction"].to_list() != before


def test_the_program_goes_on_with_what_was_saved(log, tmp_path, capsys):
    rec = Recommender(**SMALL).partial_fit(log[:1000])
    rec.save(tmp_path / "run")
    log[1000:].write_csv(tmp_path / "more.csv")
    run = str(tmp_path / "run")
    assert main(["online", str(tmp_path / "more.csv"), "--run", run, "--json"]) == 0
    *_, end = capsys.readouterr().out.splitlines()
    assert json.loads(end)["events"] == 2_000
    rec.partial_fit(log[1000:])
    again = Recommender.load(run)
    assert everything(again) == everything(rec)
    for command in (["clusters"], ["recommend", "--user", "3"], ["similar", "--item", "item 3"]):
        assert main([command[0], run, *command[1:], "--json"]) == 0
    # And the estimator goes on with what the program kept; the place in the source stays.
    again.partial_fit(log[:10]).save(run)
    assert main(["online", str(tmp_path / "more.csv"), "--run", run, "--json"]) == 0
    assert Recommender.load(run).learner.events == 2_010


def test_events_are_learned_in_the_order_of_time():
    rows = Planted(600, 20, 15, item_clusters=3).interactions().to_frame()
    assert rows["timestamp"].is_sorted()
    mixed = rows.sample(fraction=1.0, shuffle=True, seed=1)
    one, two = (Recommender(**SMALL).partial_fit(table) for table in (rows, mixed))
    assert one.predict(rows)["prediction"].to_list() == two.predict(rows)["prediction"].to_list()


@pytest.mark.parametrize("learn", [Recommender.fit, Recommender.partial_fit])
@pytest.mark.parametrize("columns", [["user", "item", "rating"], ["user", "item"]])
def test_the_same_seed_gives_the_same_result(log, learn, columns):
    rows = log[:300].select(columns)
    one, two = (
        learn(Recommender(seed=7, **SMALL), rows).predict(rows)["prediction"].to_list()
        for _ in range(2)
    )
    assert one == two
    if learn is Recommender.partial_fit:
        other = learn(Recommender(seed=8, **SMALL), rows)
        assert other.predict(rows)["prediction"].to_list() != one


def test_what_was_trained_can_be_saved_loaded_and_saved_again(log, fitted, tmp_path):
    fitted.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run")
    again.save(tmp_path / "again")
    third = Recommender.load(tmp_path / "again")
    for one in (again, third):
        assert one.recommend(k=3).equals(fitted.recommend(k=3))
        assert (one.plan, one.picked) == (fitted.plan, fitted.picked)
    assert load_run(tmp_path / "again").validation_records.equals(fitted.run.validation_records)
    again.fit(log[:500]).save(tmp_path / "run")  # one that is there is replaced
    assert Recommender.load(tmp_path / "run").run.users["interactions"].sum() == 500


def test_a_model_that_looks_back_remembers_what_users_did(log, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS["din"], "default", PRESETS["din"]["scratch"])
    options = {"model": "din", "rank": 4, "compression": "4", "embedding": "cel-lite"}
    rec = Recommender(**options).partial_fit(log[:300])
    rec.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run")
    assert again.predict(log)["prediction"].to_list() == rec.predict(log)["prediction"].to_list()
    for one in (rec, again):
        one.partial_fit(log[300:600])
    assert again.predict(log)["prediction"].to_list() == rec.predict(log)["prediction"].to_list()


def test_further_columns_of_ids_are_for_networks(log):
    shops = log.with_columns(shop=pl.Series([f"shop {n % 7}" for n in range(len(log))]))
    rec = Recommender(rank=4, compression="4").partial_fit(shops[:500], columns=["shop"])
    assert rec.plan.model == "deepfm"
    rec.partial_fit(shops[500:600])
    assert rec.clusters("shop")["members"].sum() == 7
    assert len(rec.predict(shops[:5])["prediction"]) == 5
    with pytest.raises(CelrecError, match="no column 'shop'"):
        rec.predict(log[:5])


# What is learned.


def clicks(seed=0, users=150, items=60, groups=3):
    """Users like one group of items; within it, and everywhere else, items are equally popular."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), 12)
    liked = rng.random(len(user)) < 0.95
    item = rng.integers(0, items // groups, len(user)) * groups + user % groups
    item = np.where(liked, item, rng.integers(0, items, len(user)))
    rows = pl.DataFrame({"user": user, "item": item}).unique(maintain_order=True)
    return rows.sample(fraction=1.0, shuffle=True, seed=seed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "nmf"},
        {"embedding": "cel-lite", "model": "mf", "loss": "cross-entropy", "negatives": 3},
        {"embedding": "full"},
    ],
    ids=str,
)
def test_events_alone_tell_who_likes_what(options):
    rows = clicks()
    train, test = rows[:-300], rows[-300:]
    rec = Recommender(compression="6", **options).fit(train)
    best = rec.recommend(k=5)
    right = (best["item"] % 3 == best["user"] % 3).mean()
    found = rec.evaluate(test, k=5)
    assert right > 0.8  # by chance or popularity, a third
    assert found["test"]["auc"] > 0.7
    assert found["test"]["mse"] is None


def test_events_by_and_by_tell_who_likes_what():
    rows = clicks()
    rec = Recommender(compression="8")
    for start in range(0, len(rows), 300):
        rec.partial_fit(rows[start : start + 300])
    for _ in range(3):
        rec.partial_fit(rows)
    best = rec.recommend(k=5)
    assert (best["item"] % 3 == best["user"] % 3).mean() > 0.6
    known = rec.run
    assert known.items["interactions"].sum() == 4 * len(rows)  # what was drawn does not count
    assert known.items["mean_target"].unique().to_list() == [1.0]


def test_ratings_are_learned(log):
    variance = log["rating"].var()
    for rec in (Recommender().fit(log), Recommender(compression="4").partial_fit(log)):
        assert rec.evaluate(log)["test"]["mse"] < 0.9 * variance


def test_picks_are_told(log, fitted, live):
    assert "ratings" in fitted.picked
    assert "model mf" in fitted.picked
    assert "compression" not in fitted.picked  # which was given
    assert "cel-lite" in live.picked
    told = Recommender(**SMALL).partial_fit(log.drop("rating")).picked
    assert "implicit feedback, learned with negative sampling" in told


def test_what_the_program_trained_can_be_asked_and_trained_anew(log, tmp_path, capsys):
    log.write_csv(tmp_path / "log.csv")
    words = [str(tmp_path / "log.csv"), "--rank", "3", "--compression", "3"]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 0
    rec = Recommender.load(tmp_path / "run")
    assert "targets are ratings" in rec.picked
    assert main(["recommend", str(tmp_path / "run"), "--user", "3", "-k", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["recommended"]
    assert rec.recommend(3, k=2)["item"].to_list() == [one["item"] for one in told]
    plan = rec.plan
    with pytest.raises(CelrecError, match="cannot go on"):
        rec.partial_fit(log)
    assert rec.fit(log[:500]).plan == plan
    stream = ["--loss", "cross-entropy", "--negatives", "2", "--rank", "3", "--compression", "4"]
    assert main(["online", words[0], "--run", str(tmp_path / "live"), *stream]) == 0
    live = Recommender.load(tmp_path / "live").partial_fit(log[:50])  # ratings of any kind
    assert live.plan.negatives == 2
    with pytest.raises(CelrecError, match="is there and no run folder"):
        rec.save(tmp_path / "live")  # one that learns online is not lost for another kind
