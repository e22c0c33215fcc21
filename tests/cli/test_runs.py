import json
import shutil
from dataclasses import replace

import polars as pl
import pytest

from celrec import Planted
from celrec.cli.main import main
from celrec.config.presets import PRESETS

RUNS = {
    "cel": [],
    "mf": ["--model", "mf"],
    "auto": ["--compression", "auto"],
    "personal": ["--personalise", "20"],
    "both": ["--side", "both", "--fold", "2/5", "--seed", "3"],
    "all": ["--model", "mf", "--side", "both", "--compression", "auto", "--personalise", "all"],
    "modulo": ["--embedding", "modulo"],
    "full": ["--embedding", "full", "--model", "mf"],
    "frozen": ["--start", "ratings:3", "--frozen"],
    "released": ["--preset", "released", "--side", "users"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a log, and runs of all kinds."""
    folder = tmp_path_factory.mktemp("trained")
    planted = Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(folder / "log.csv")
    with pytest.MonkeyPatch.context() as patch:
        for presets in PRESETS.values():
            for name, how in presets.items():
                schedule, personal = replace(how.schedule, steps=20), replace(how.personal, steps=6)
                patch.setitem(presets, name, replace(how, schedule=schedule, personal=personal))
        words = ["train", str(folder / "log.csv"), "--rank", "4", "--compression", "4"]
        for name, more in RUNS.items():
            assert main([*words, *more, "--out", str(folder / name)]) == 0
    return folder


def printed(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0

    def constant(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=constant)


# Evaluation.


@pytest.mark.parametrize("name", RUNS)
def test_evaluate_finds_again_what_train_found(capsys, trained, name):
    found = printed(capsys, "evaluate", trained / name)
    told = json.loads((trained / name / "result.json").read_text())
    assert found["test"] == pytest.approx(told["test"])
    assert found["unseen"] == {"users": 0, "items": 0}
    assert found["rows"] == 600


@pytest.mark.parametrize("name", RUNS)
def test_evaluate_takes_other_data_with_unseen_ids(capsys, trained, tmp_path, name):
    path = tmp_path / "more.csv"
    pl.DataFrame({"user": [0, 999], "item": [1, 888], "target": [3.0, 4.0]}).write_csv(path)
    found = printed(capsys, "evaluate", trained / name, path)
    assert found["rows"] == 2
    assert found["unseen"] == {"users": 1, "items": 1}
    assert found["test"]["mse"] < 50
    assert main(["evaluate", str(trained / name), str(path)]) == 0
    assert "1 with an unseen user" in capsys.readouterr().out


def test_data_of_which_all_is_unseen_can_be_evaluated(capsys, trained, tmp_path):
    path = tmp_path / "strange.csv"
    pl.DataFrame({"user": ["a", "b"], "item": ["c", "d"], "target": [3.0, 4.0]}).write_csv(path)
    found = printed(capsys, "evaluate", trained / "all", path)
    assert found["unseen"] == {"users": 2, "items": 2}
    assert found["test"]["mse_warm"] is None
    assert main(["evaluate", str(trained / "all"), str(path)]) == 0
    assert "mse_warm  none" in capsys.readouterr().out


# Clusters.


def test_clusters_are_told_with_all_members_counted(capsys, trained):
    found = printed(capsys, "clusters", trained / "cel", "--members", "3")
    assert len(found) == 4
    assert sum(cluster["members"] for cluster in found) == 50
    assert sum(cluster["interactions"] for cluster in found) == 2400
    means = [cluster["mean_target"] for cluster in found]
    assert means == sorted(means, reverse=True)
    items = pl.read_parquet(trained / "cel" / "items.parquet")
    for cluster in found:
        own = items.filter(pl.col("cluster") == cluster["cluster"])
        total = sum(own["interactions"] * own["mean_target"].fill_nan(0))
        assert cluster["mean_target"] == pytest.approx(total / cluster["interactions"])
        top = own.sort("interactions", descending=True)["interactions"].head(3).to_list()
        shown = own.filter(pl.col("id").cast(pl.String).is_in(cluster["examples"]))
        assert sorted(shown["interactions"].to_list(), reverse=True) == top


@pytest.mark.parametrize(
    ("name", "side", "count"),
    [("mf", "items", 4), ("both", "users", 4), ("frozen", "items", 3), ("auto", "items", None)],
)
def test_clusters_of_every_kind_of_run_are_told(capsys, trained, name, side, count):
    found = printed(capsys, "clusters", trained / name, "--side", side)
    told = json.loads((trained / name / "result.json").read_text())
    assert len(found) == (told["clusters"] if count is None else count)
    assert sum(cluster["members"] for cluster in found) == (50 if side == "items" else 40)


def test_clusters_are_shown_to_people(capsys, trained):
    assert main(["clusters", str(trained / "both")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "most active members" in shown
    found = json.loads((trained / "both" / "result.json").read_text())["diagnostics"]
    assert f"duplicate rows: {found['duplicate_rows']}" in shown
    assert f"standard deviation of ratings: {found['rating_spread']:.2f} in a cluster" in shown
    # They are those of the items.
    assert main(["clusters", str(trained / "both"), "--side", "users"]) == 0
    assert "duplicate rows" not in capsys.readouterr().out


def test_clusters_without_interactions_come_last_and_have_no_mean(capsys, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "cel", copy)
    items = pl.read_parquet(copy / "items.parquet")
    unheard = pl.col("cluster") == 1
    items.with_columns(
        interactions=pl.when(unheard).then(0).otherwise("interactions"),
        mean_target=pl.when(unheard).then(float("nan")).otherwise("mean_target"),
    ).write_parquet(copy / "items.parquet")
    found = printed(capsys, "clusters", copy)
    assert found[-1]["cluster"] == 1
    assert (found[-1]["mean_target"], found[-1]["interactions"]) == (None, 0)
    assert all(cluster["mean_target"] > 0 for cluster in found[:-1])
    assert main(["clusters", str(copy)]) == 0
    shown = capsys.readouterr().out
    assert "none" in shown
    assert "nan" not in shown.lower()


# Mistakes.


def test_mistakes_are_one_line(capsys, trained, tmp_path):
    for words, told in (
        (["evaluate", tmp_path], "not a run folder"),
        (["evaluate", trained / "cel", tmp_path / "nothing.csv"], "nothing.csv"),
        (["clusters", tmp_path], "not a run folder"),
        (["clusters", trained / "cel", "--side", "users"], "the users are not clustered"),
        (["clusters", trained / "released"], "the items are not clustered"),
        (["clusters", trained / "personal"], "the items are not clustered"),
        (["clusters", trained / "modulo"], "the items are not clustered"),
        (
            ["clusters", trained / "cel", "--side", "left"],
            "side must be one of items, users, not 'left'",
        ),
    ):
        assert main([*map(str, words)]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_a_run_that_does_not_say_what_it_was_tested_on_needs_data(capsys, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "cel", copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "source": {"data": "mine"}}))
    assert main(["evaluate", str(copy)]) == 2
    assert "give DATA" in capsys.readouterr().err
    assert main(["evaluate", str(copy), str(trained / "log.csv")]) == 0
    capsys.readouterr()


def test_a_run_without_test_rows_is_told(capsys, tmp_path, monkeypatch):
    how = PRESETS["nmf"]["default"]
    short = replace(how, schedule=replace(how.schedule, steps=5))
    monkeypatch.setitem(PRESETS["nmf"], "default", short)
    path, run = tmp_path / "log.csv", tmp_path / "run"
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "target": [1.0, 5.0]}).write_csv(path)
    assert main(["train", str(path), "--rank", "2", "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"{run}: its training had no test data; give DATA" in error
    assert error.count("\n") == 1
