"""A service of a model whose vectors are sums of rows of several levels."""

from dataclasses import replace

import pytest

from celrec.config.plan import Plan
from celrec.inference.codes import code_table
from celrec.inference.explanation import Explainer
from celrec.inference.top_items import TopItems
from celrec.runs.run_folder import load_run, save_run, trained_run
from tests.inference.small_models import small_log, small_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    log, plan = replace(small_log(), columns={}), Plan("cel", "5", rank=6, model="mf")
    folder = tmp_path_factory.mktemp("levels") / "run"
    save_run(folder, trained_run(log, small_model(log, plan, levels=3), plan, {}, {}, {}))
    return folder


def test_answers_are_those_of_the_library(folder, inside):
    run = load_run(folder, seen=True)
    items, user = run.items["id"].to_list(), run.users["id"][2]
    with inside(folder) as served:
        status, best = served.ask(f"/recommend?user={user}&k=5")
        assert status == 200
        expected = TopItems(run).recommend([user], 5)
        assert [one["item"] for one in best["items"]] == expected["item"].to_list()
        assert [one["score"] for one in best["items"]] == expected["score"].to_list()
        why = served.ask(f"/explain?item={items[7]}&user={user}")[1]
        assert why["codes"] == list(code_table(run).row(7)[1:])
        assert why["text"] == Explainer(run).explain(items[7], user).text()


def test_clusters_are_listed_by_level(folder, inside):
    run = load_run(folder)
    codes = code_table(run)
    with inside(folder) as served:
        for level in (1, 2, 3):
            for one in served.ask(f"/clusters?level={level}")[1]["clusters"]:
                cluster = one["cluster"]
                mine = codes["id"].filter(codes[f"code_{level}"] == cluster).to_list()
                assert one["members"] == len(mine)
                page = served.ask(f"/clusters/{cluster}?level={level}&count=100")[1]
                assert {member["id"] for member in page["members"]} == set(mine)
        told = "level must lie in 1 … 3 for the items, not 4"
        assert served.ask("/clusters?level=4") == (404, {"error": told})
        assert served.ask("/clusters/0?level=4") == (404, {"error": told})
        assert served.ask("/clusters?level=0")[0] == 422
