import json
import shutil
from dataclasses import replace

import polars as pl
import pytest

from celrec import Planted
from celrec.cli.main import main
from celrec.training.offline import Schedule
from celrec.training.presets import PRESETS


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    planted = Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(folder / "log.csv")
    with pytest.MonkeyPatch.context() as patch:
        schedule = Schedule(steps=60, split_every=5, judge_every=20)
        quick = replace(PRESETS["nmf"]["default"], schedule=schedule)
        patch.setitem(PRESETS["nmf"], "default", quick)
        words = ["train", str(folder / "log.csv"), "--compression", "4", "--rank", "4"]
        assert main([*words, "--out", str(folder / "run")]) == 0
    return folder


def printed(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_finds_again_what_train_found(capsys, trained):
    found = printed(capsys, "evaluate", trained / "run")
    told = json.loads((trained / "run" / "result.json").read_text())
    assert found["test"] == pytest.approx(told["test"])
    assert found["unseen"] == {"users": 0, "items": 0}


def test_evaluate_takes_other_data_with_unseen_ids(capsys, trained, tmp_path):
    path = tmp_path / "more.csv"
    pl.DataFrame({"user": [0, 999], "item": [1, 888], "target": [3.0, 4.0]}).write_csv(path)
    found = printed(capsys, "evaluate", trained / "run", path)
    assert found["rows"] == 2
    assert found["unseen"] == {"users": 1, "items": 1}
    assert main(["evaluate", str(trained / "run"), str(path)]) == 0
    assert "1 with an unseen user" in capsys.readouterr().out


def test_clusters_are_told_with_all_members_counted(capsys, trained):
    found = printed(capsys, "clusters", trained / "run", "--members", "3")
    assert len(found) == 4
    assert sum(cluster["members"] for cluster in found) == 50
    assert sum(cluster["interactions"] for cluster in found) == 2400
    means = [cluster["mean_target"] for cluster in found]
    assert means == sorted(means, reverse=True)
    items = pl.read_parquet(trained / "run" / "items.parquet")
    for cluster in found:
        own = items.filter(pl.col("cluster") == cluster["cluster"])
        top = own.sort("interactions", descending=True)["interactions"].head(3).to_list()
        shown = own.filter(pl.col("id").cast(pl.String).is_in(cluster["examples"]))
        assert sorted(shown["interactions"].to_list(), reverse=True) == top


def test_clusters_are_shown_to_people(capsys, trained):
    assert main(["clusters", str(trained / "run")]) == 0
    assert "most active members" in capsys.readouterr().out


def test_mistakes_are_one_line(capsys, trained, tmp_path):
    for words, told in (
        (["evaluate", str(tmp_path)], "not a run folder"),
        (["clusters", str(trained / "run"), "--side", "users"], "the users are not clustered"),
        (["clusters", str(trained / "run"), "--side", "left"], "side must be items or users"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_a_run_that_does_not_say_what_it_was_tested_on_needs_data(capsys, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "run", copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "source": {"data": "mine"}}))
    assert main(["evaluate", str(copy)]) == 2
    assert "give DATA" in capsys.readouterr().err
    assert main(["evaluate", str(copy), str(trained / "log.csv")]) == 0
