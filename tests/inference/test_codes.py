"""Codes of ids, their export, and what is shown of levels."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import celrec
from celrec import CelrecError
from celrec.cli.main import main
from celrec.config.plan import Plan
from celrec.inference.codes import code_table
from celrec.inference.explanation import Explainer, cluster_summary
from celrec.reporting.contents import cluster_views
from celrec.runs.run_folder import load_run, save_run, trained_run
from tests.inference.small_models import small_log, small_model

PLANS = {
    "levels": Plan("cel", "5", rank=6, model="deepfm", side="both"),
    "items": Plan("cel", "5", rank=6, model="mf"),
    "one": Plan("cel", "5", rank=6, model="mf"),
    "lite": Plan("cel-lite", "5", rank=6),
    "full": Plan("full", "5", rank=6),
}
LEVELS = {"levels": 3, "items": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs that were written, with titles of items."""
    folder, log = tmp_path_factory.mktemp("runs"), small_log()
    titles = pl.Series("title", [f"film {n}" for n in range(log.num_items)])
    for name, plan in PLANS.items():
        model = small_model(log, plan, levels=LEVELS.get(name, 1))
        known = log if plan.network else replace(log, columns={})
        features = log.item_features.with_columns(titles)
        known = replace(known, item_features=features)
        save_run(folder / name, trained_run(known, model, plan, {}, {}, {}))
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    return {name: load_run(folder / name, seen=True) for name in PLANS}


@pytest.mark.parametrize("side", ["items", "users", "shop"])
def test_codes_are_those_of_the_levels(runs, side):
    run = runs["levels"]
    table = run.model.tables[side]
    found = code_table(run, side)
    assert found.columns == ["id", "code_1", "code_2", "code_3"]
    assert found["id"].to_list() == run.tables[side]["id"].to_list()
    for number, level in enumerate(table.clustered_levels, 1):
        own = level.assignment[: len(found)].tolist()
        assert found[f"code_{number}"].to_list() == own
    assert run.tables[side]["cluster"].to_list() == found["code_1"].to_list()


@pytest.mark.parametrize("name", ["one", "lite"])
def test_without_levels_the_code_is_the_cluster(runs, name):
    found = code_table(runs[name])
    assert found.columns == ["id", "code_1"]
    assert found["code_1"].to_list() == runs[name].items["cluster"].to_list()


def test_a_table_without_codes_is_told_of(runs):
    with pytest.raises(CelrecError, match=r"the users have no codes.*; take 'items'"):
        code_table(runs["items"], "users")
    with pytest.raises(CelrecError, match=r"the items have no codes.*; train with embedding 'cel'"):
        code_table(runs["full"])
    with pytest.raises(CelrecError, match="side must be one of items, users, not 'shops'"):
        code_table(runs["full"], "shops")


def test_the_command_writes_a_file_for_each_table_that_has_codes(runs, folder, tmp_path, capsys):
    out = tmp_path / "codes"
    for _ in range(2):  # an export takes the place of an earlier one
        words = ["export", str(folder / "levels"), "--format", "codes", "--out", str(out)]
        assert main([*words, "--json"]) == 0
    about = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert about["tables"].keys() == {"users", "items", "shop"}
    assert sorted(file.name for file in out.iterdir()) == sorted(
        ["export.json", *(table["file"] for table in about["tables"].values())]
    )
    for side, table in about["tables"].items():
        written = pl.read_parquet(out / table["file"])
        assert written.equals(code_table(runs["levels"], side))
        assert table["clusters"] == [written[f"code_{n}"].n_unique() for n in (1, 2, 3)]
    assert main(["export", str(folder / "items"), "--format", "codes", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'items.parquet'}: 40 items, 5 × 5 clusters\n"
    assert sorted(file.name for file in out.iterdir()) == ["export.json", "items.parquet"]
    assert main(["export", str(folder / "full"), "--format", "codes"]) == 2
    assert "the items have no codes" in capsys.readouterr().err


def test_the_estimator_has_them_too(folder):
    rec = celrec.Recommender.load(folder / "items")
    assert rec.codes().columns == ["id", "code_1", "code_2"]
    assert rec.clusters(level=2)["cluster"].sort().to_list() == list(range(5))
    assert rec.clusters().rows() != rec.clusters(level=2).rows()


def test_clusters_are_listed_by_level(runs, folder, capsys):
    run = runs["levels"]
    for level in (1, 2, 3):
        codes = code_table(run)[f"code_{level}"].to_numpy()
        found = cluster_summary(run, "items", 2, level)
        assert dict(found.select("cluster", "members").iter_rows()) == {
            cluster: int((codes == cluster).sum()) for cluster in set(codes.tolist())
        }
        assert main(["clusters", str(folder / "levels"), "--level", str(level), "--json"]) == 0
        assert (
            json.loads(capsys.readouterr().out)
            == cluster_summary(run, "items", 5, level).to_dicts()
        )
    for name, level, most in (("levels", 4, 3), ("levels", 0, 3), ("one", 2, 1)):
        with pytest.raises(CelrecError, match=rf"level must lie in 1 … {most} for the items, not"):
            cluster_summary(runs[name], level=level)


def test_an_explanation_has_the_path_of_codes_and_the_nearest_first(runs):
    run = runs["levels"]
    codes = code_table(run).select("code_1", "code_2", "code_3").to_numpy()
    ids, counts = run.items["id"].to_list(), run.items["interactions"].to_list()
    for item in range(len(ids)):
        why = Explainer(run).explain(ids[item], neighbours=40)
        assert why.codes == tuple(codes[item].tolist())
        assert why.cluster == why.path[-1] == why.codes[0]
        assert why.members == (codes[:, 0] == codes[item, 0]).sum()
        assert f"codes {' → '.join(map(str, why.codes))}" in why.text()

        def equal(other, item=item):
            same = codes[other] == codes[item]
            return 3 if same.all() else int(same.argmin())

        others = [n for n in range(len(ids)) if n != item and equal(n)]
        others.sort(key=lambda n: (-equal(n), -counts[n], n))
        assert [one.item for one in why.neighbours] == [ids[n] for n in others]
    assert Explainer(runs["one"]).explain(ids[0]).codes == (runs["one"].items["cluster"][0],)
    assert Explainer(runs["full"]).explain(ids[0]).codes == ()


def test_a_report_has_a_view_of_each_level(runs):
    run = runs["levels"]
    views = cluster_views(run, None)
    sides = [
        f"{side} in level {level}" for side in ("items", "users", "shop") for level in (1, 2, 3)
    ]
    assert [view.side for view in views] == sides
    assert len({view.key for view in views}) == len(views)
    table = run.model.tables["items"].clustered_levels[1]
    view = views[1]
    assert view.parents.tolist() == table.parent.tolist()
    assert [cluster.size for cluster in view.clusters] == table.sizes().tolist()
    codes = {str(row[0]): " → ".join(map(str, row[1:])) for row in code_table(run).iter_rows()}
    for cluster in view.clusters:
        for member in cluster.members:
            assert member[4] == codes[member[0]]
    assert all(
        len(member) == 4
        for one in cluster_views(runs["one"], None)[0].clusters
        for member in one.members
    )


def test_codes_tell_what_predictions_can(runs):
    """Ids with equal codes have equal vectors."""
    run = runs["levels"]
    vectors = run.model.items(torch.arange(len(run.items))).detach().numpy()
    found = code_table(run).drop("id").rows()
    for first in range(len(found)):
        for second in range(first):
            same = np.array_equal(vectors[first], vectors[second])
            assert same == (found[first] == found[second])
