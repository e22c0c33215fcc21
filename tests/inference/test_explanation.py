from dataclasses import replace
from itertools import pairwise

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Plan, Planted, Split, fit, read
from celrec.inference.explanation import Explainer
from celrec.inference.top_items import TopItems
from celrec.runs.run_folder import load_run, save_run, trained_run


def trained(folder, **how):
    frame = Planted(1_500, 30, 40, dim=2, item_clusters=4, noise=0.1).interactions().to_frame()
    log = read(frame.with_columns(pl.col("item").cast(pl.String) + " x"))
    titles = [f"Film {n}" for n in range(log.num_items)]
    log = replace(log, item_features=pl.DataFrame({"title": titles}))
    plan = Plan(**{"compression": "4", "rank": 3, **how})
    save_run(folder, trained_run(log, fit(Split.random(log), plan).model, plan, {}, {}, {}))
    return load_run(folder, seen=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("explanation") / "run")


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_an_explanation_agrees_with_the_run(run, data):
    item = data.draw(st.sampled_from(run.items["id"].to_list()))
    user = data.draw(st.sampled_from(run.users["id"].to_list()))
    most = data.draw(st.integers(0, 50))
    why = Explainer(run).explain(item, user, most)
    rows = {row["id"]: row for row in run.items.iter_rows(named=True)}
    own = rows[item]
    assert (why.item, why.title, why.interactions) == (item, own["title"], own["interactions"])
    same = [row for row in rows.values() if row["cluster"] == own["cluster"]]
    assert (why.cluster, why.members) == (own["cluster"], len(same))
    order = sorted((r for r in same if r["id"] != item), key=lambda r: -r["interactions"])
    assert [one.item for one in why.neighbours] == [r["id"] for r in order][:most]
    dense = run.known.user_ids.encode([user])
    seen = dict.fromkeys(run.items["id"][int(n)] for n in run.seen.of(dense)[1])
    expected = [s for s in seen if s != item and rows[s]["cluster"] == own["cluster"]]
    assert [one.item for one in why.shared] == expected[:most]
    everything = TopItems(run).recommend([user], len(rows), with_seen=True)
    score = everything.filter(pl.col("item") == item)["score"][0]
    assert why.score == pytest.approx(score, rel=1e-6)  # of a product of another shape


def test_the_path_is_that_of_the_split_tree(run):
    parent = run.model.item_rows.parent
    for item in run.items["id"]:
        path = Explainer(run).explain(item).path
        assert parent[path[0]] == -1
        for above, below in pairwise(path):
            assert parent[below] == above


def test_the_text_names_all_fields(run):
    item, user = run.items["id"][0], run.users["id"][0]
    why = Explainer(run).explain(item, user)
    text = why.text()
    for word in (item, why.title, f"cluster {why.cluster}", f"{why.score:.3f}"):
        assert word in text
    assert all(other.title in text for other in (*why.neighbours, *why.shared))
    assert why.as_dict()["neighbours"][0]["item"] == why.neighbours[0].item


def test_an_item_that_learns_online_is_a_mixture_of_rows(tmp_path):
    run = trained(tmp_path / "run", embedding="cel-lite", model="mf")
    why = Explainer(run).explain(run.items["id"][3])
    assert why.path == ()
    assert max(why.weights, key=lambda row: why.weights[row]) == why.cluster
    assert 0.9 < sum(why.weights.values()) <= 1.001
    weights = run.model.items.weights(torch.tensor([3]))[0]
    assert why.weights[why.cluster] == pytest.approx(float(weights.max()), abs=1e-4)


def test_without_clusters_there_is_still_a_score(tmp_path):
    run = trained(tmp_path / "run", embedding="full", compression="100%")
    why = Explainer(run).explain(run.items["id"][0], run.users["id"][1])
    assert (why.cluster, why.members, why.neighbours, why.shared) == (None, 0, (), ())
    assert why.score is not None
    assert "no clusters" in why.text()


def test_a_private_row_is_noted(tmp_path):
    run = trained(tmp_path / "run", personalise="all")
    assert Explainer(run).explain(run.items["id"][0]).own_row


def test_strangers(run):
    with pytest.raises(CelrecError, match="item 'none' is not known"):
        Explainer(run).explain("none")
    with pytest.raises(CelrecError, match="neighbours must not be negative, not -1"):
        Explainer(run).explain(run.items["id"][0], neighbours=-1)
    why = Explainer(run).explain(run.items["id"][0], user="nobody")
    assert (why.user, why.shared) == ("nobody", ())
    assert why.score is not None
