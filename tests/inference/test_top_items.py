from dataclasses import replace

import polars as pl
import pytest

from celrec import CelrecError, Planted, read
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.inference import top_items
from celrec.inference.top_items import TopItems
from celrec.inference.top_k import TopK
from celrec.runs.run_folder import load_run, save_run, trained_run


def saved(folder, log, titles=None, **how):
    plan = Plan("cel", "3", rank=4, start="random:3", frozen=True, **how)
    if titles is not None:
        log = replace(log, item_features=pl.DataFrame({"title": titles}))
    save_run(folder, trained_run(log, make_model(log, plan), plan, {}, {}, {}))
    return load_run(folder, seen=True)


@pytest.fixture
def log():
    frame = Planted(120, 10, 20, dim=2, item_clusters=3).interactions().to_frame()
    words = frame.with_columns(pl.col("item").cast(pl.String) + " x")
    return read(words)


def test_answers_have_original_ids_and_titles(log, tmp_path):
    titles = [f"Film {n}" for n in range(log.num_items)]
    run = saved(tmp_path / "run", log, titles)
    users = log.user_ids.ids[[4, 2]]
    found = TopItems(run).recommend(users, 5)
    expected = TopK(run.model, log.item_counts).recommend([4, 2], 5, seen=run.seen)
    assert found.columns == ["user", "place", "item", "score", "title"]
    assert found["user"].to_list() == [users[0]] * 5 + [users[1]] * 5
    assert found["place"].to_list() == [1, 2, 3, 4, 5] * 2
    items = expected.items.ravel().tolist()
    assert found["item"].to_list() == log.item_ids.ids.gather(items).to_list()
    assert found["title"].to_list() == [titles[item] for item in items]
    assert found["score"].to_list() == expected.scores.ravel().tolist()
    watched = set(log.to_frame().filter(pl.col("user") == users[0])["item"])
    assert not watched & set(found["item"][:5])
    again = TopItems(run).recommend(users, log.num_items, with_seen=True)
    assert watched < set(again["item"].head(log.num_items))


def test_users_of_the_command_line_are_words_and_strangers_get_something(log, tmp_path):
    run = saved(tmp_path / "run", log)
    top = TopItems(run)
    assert log.user_ids.ids.dtype == pl.Int64
    number = log.user_ids.ids[0]
    one, two = (top.recommend([user], 4) for user in (number, str(number)))
    assert one.equals(two)
    assert one.columns == ["user", "place", "item", "score"]
    strange = top.recommend([str(number), "somebody else"], 4)
    assert strange["user"].to_list() == [str(number)] * 4 + ["somebody else"] * 4
    assert strange["item"][4:].to_list() == top.recommend([-77], 4)["item"].to_list()


def test_parts_are_those_of_the_whole(log, tmp_path, monkeypatch):
    top = TopItems(saved(tmp_path / "run", log))
    users = log.user_ids.ids
    whole = top.recommend(users, 3)
    monkeypatch.setattr(top_items, "USERS_AT_ONCE", 4)
    parts = list(top.in_parts(users, 3))
    assert len(parts) == -(-len(users) // 4)
    assert pl.concat(parts).equals(whole)
    assert top.recommend(users[:0], 3).schema == whole.schema


def test_filters_are_original_ids_and_strangers_among_them_are_left_out(log, tmp_path):
    run = saved(tmp_path / "run", log)
    ids = log.item_ids.ids
    allowed, banned = [*ids[:6], "no such item"], [ids[1], "nor this"]
    found = TopItems(run, allowed=allowed, banned=banned).recommend([-1], 20)
    assert sorted(found["item"]) == sorted(set(ids[:6]) - {ids[1]})
    assert len(TopItems(run, allowed=ids[:1]).recommend([-1], 20)) == 1
    with pytest.raises(CelrecError, match="allowed: none of these items is known"):
        TopItems(run, allowed=["no such item"])


def test_ties_go_to_the_popular_or_to_the_latest(log, tmp_path):
    run = saved(tmp_path / "run", log)
    cluster = dict(run.items.select("id", "cluster").iter_rows())
    popular = dict(run.items.select("id", "interactions").iter_rows())
    latest = {item: row for row, item in enumerate(log.to_frame().sort("timestamp")["item"])}
    for ties, weight in (("popularity", popular), ("recency", latest)):
        items = TopItems(run, ties=ties).recommend([-1], 20)["item"].to_list()
        groups = [[item for item in items if cluster[item] == number] for number in range(3)]
        for members in groups:
            weights = [weight[item] for item in members]
            assert weights == sorted(weights, reverse=True)
        assert sorted(map(len, groups))[-1] > 3


def test_similar_items_have_original_ids(log, tmp_path):
    run = saved(tmp_path / "run", log, [f"Film {n}" for n in range(log.num_items)])
    ids = log.item_ids.ids
    found = TopItems(run).similar(ids[[3, 0]], 6)
    expected = TopK(run.model, log.item_counts).similar([3, 0], 6)
    assert found.columns == ["item", "place", "similar", "score", "title"]
    assert found["item"].to_list() == [ids[3]] * 6 + [ids[0]] * 6
    assert found["similar"].to_list() == ids.gather(expected.items.ravel()).to_list()
    with pytest.raises(CelrecError, match=r"item 'no such' is not known; name one that is in"):
        TopItems(run).similar([ids[0], "no such"])


def test_a_run_that_does_not_tell_what_was_seen_is_told(log, tmp_path):
    saved(tmp_path / "run", log)
    run = load_run(tmp_path / "run")
    with pytest.raises(CelrecError, match="no record of what users have seen"):
        TopItems(run).recommend([1])
    assert len(TopItems(run).recommend([1], with_seen=True)) == 10
    with pytest.raises(CelrecError, match="ties 'recency': the run has no record"):
        TopItems(run, ties="recency")
    with pytest.raises(CelrecError, match="ties must be one of popularity, recency, not 'x'"):
        TopItems(run, ties="x")
