import json
import os
from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, Split
from celrec.config.building import make_model
from celrec.config.offline import OfflineConfig, Schedule
from celrec.config.plan import Plan
from celrec.config.presets import PRESETS
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.offline.fitting import Fit, fit
from celrec.offline.solver import ValidationRecord
from celrec.offline.training import OfflineTraining
from celrec.runs.run_folder import check_place, load_run, save_run, trained_run
from celrec.runtime.memory_budget import MemoryBudget
from tests.inference.small_models import small_log, small_model

PLANTED = Planted(rows=4000, users=50, items=60, dim=3, item_clusters=4)


@pytest.fixture(scope="module")
def trained():
    split = Split.random(PLANTED.interactions())
    plan = Plan("cel", "5", side="both", rank=8)
    model = make_model(split.train, plan)
    how = OfflineConfig(schedule=Schedule(steps=60, validate_every=20))
    training = OfflineTraining(model, split.train, split.valid, how)
    training.start()
    validation_records = {"choose": training.run()}
    return split, plan, Fit(model, validation_records, {"choose": training.best}, {}, {})


def save(path, trained, source=None, result=None):
    split, plan, fitted = trained
    learned, model, validation_records = (
        split.train_and_valid(),
        fitted.model,
        fitted.validation_records,
    )
    save_run(
        path, trained_run(learned, model, plan, validation_records, source or {}, result or {})
    )
    return path


@pytest.fixture
def run(trained, tmp_path):
    return save(tmp_path / "run", trained, {"data": "planted"}, {"test": {"mse": 1.0}})


def test_what_is_loaded_predicts_as_what_was_saved(trained, run):
    split, plan, fitted = trained
    loaded = load_run(run)
    assert torch.equal(loaded.model.predict(split.test), fitted.model.predict(split.test))
    assert loaded.plan == plan
    assert loaded.known.user_ids.ids.equals(split.train.user_ids.ids)
    assert loaded.known.item_ids.encode(split.train.item_ids.ids).tolist() == list(range(60))
    assert (loaded.source, loaded.result) == ({"data": "planted"}, {"test": {"mse": 1.0}})


@pytest.mark.parametrize(
    "plan",
    [
        Plan("cel", "5", "items", 3, model="mf"),
        Plan("cel", "5", "users", 3, personalise="20"),
        Plan("cel", "5", "both", 3, model="mf", personalise="all"),
        Plan("cel", "auto", "both", 3),
        Plan("cel", "auto", "items", 3, personalise="20"),
        Plan("modulo", "5", "both", 3, model="mf", seed=4),
        Plan("modulo", "5", "items", 3, seed=4),
        Plan("full", rank=3, model="mf"),
    ],
    ids=lambda plan: f"{plan.embedding} {plan.compression} {plan.model} {plan.personalise}",
)
def test_every_kind_of_table_predicts_the_same_when_loaded(plan, trained, tmp_path, monkeypatch):
    how = PRESETS[plan.model]["default"]
    short = replace(how.schedule, steps=8), replace(how.personal, steps=4)
    how = replace(how, schedule=short[0], personal=short[1])
    monkeypatch.setitem(PRESETS[plan.model], "default", how)
    split, _, _ = trained
    fitted = fit(split, plan)
    loaded = load_run(save(tmp_path / "run", (split, plan, fitted)))
    log = split.test
    user, item = log.user.copy(), log.item.copy()
    user[::3], item[::4] = -1, -1
    for rows in (log, replace(log, user=user, item=item)):
        assert torch.equal(loaded.model.predict(rows), fitted.model.predict(rows))
    for one, two in ((loaded.model, fitted.model), (loaded.model.items, fitted.model.items)):
        assert str(one) == str(two)
    assert loaded.model.items.memory() == fitted.model.items.memory()
    assert loaded.model.users.memory() == fitted.model.users.memory()
    stages = pl.read_parquet(tmp_path / "run/judgements.parquet")["stage"].unique().to_list()
    assert sorted(stages) == sorted(fitted.validation_records)
    for name, table in (("users", fitted.model.user_rows), ("items", fitted.model.item_rows)):
        columns = getattr(loaded, name).columns
        assert ("cluster" in columns) == hasattr(table, "assignment")
        assert ("private" in columns) == isinstance(table, MixedEmbedding)
        if isinstance(table, MixedEmbedding):
            private = table.private(torch.arange(table.num_embeddings)).tolist()
            assert getattr(loaded, name)["private"].to_list() == private


def test_tables_tell_ids_counts_means_and_clusters(trained, run):
    split, _, fitted = trained
    learned = split.train_and_valid()
    for name, ids, dense, table in (
        ("users", learned.user_ids, learned.user, fitted.model.users),
        ("items", learned.item_ids, learned.item, fitted.model.items),
    ):
        shown = pl.read_parquet(run / f"{name}.parquet")
        assert shown["id"].to_list() == ids.ids.to_list()
        assert shown["cluster"].to_list() == table.assignment[:-1].tolist()
        for j, (count, mean) in enumerate(shown.select("interactions", "mean_target").iter_rows()):
            own = learned.target[dense == j]
            assert count == len(own)
            assert mean == pytest.approx(own.mean() if len(own) else np.nan, nan_ok=True)


def test_judgements_tell_their_stage(trained, tmp_path):
    split, plan, fitted = trained
    stages = {
        "choose": fitted.validation_records["choose"],
        "personalise": [
            ValidationRecord(2, 3, 0.5, 0.25, 1),
            ValidationRecord(4, 3, 0.4, float("nan"), 0),
        ],
    }
    save(tmp_path / "run", (split, plan, replace(fitted, validation_records=stages)))
    shown = pl.read_parquet(tmp_path / "run/judgements.parquet")
    expected = [{"stage": stage, **asdict(record)} for stage in stages for record in stages[stage]]
    assert repr(shown.to_dicts()) == repr(expected)


def test_titles_are_kept_and_ids_without_interactions_have_no_mean(trained, tmp_path):
    split, plan, fitted = trained
    titles = pl.DataFrame({"title": [f"Movie {j}" for j in range(60)], "genres": [["War"]] * 60})
    log = replace(split.train, item_features=titles)[split.train.item > 3]
    save_run(
        tmp_path / "run", trained_run(log, fitted.model, plan, fitted.validation_records, {}, {})
    )
    items = load_run(tmp_path / "run").items
    assert items["title"].to_list() == titles["title"].to_list()
    assert items["interactions"].head(5).to_list()[:4] == [0] * 4
    assert items["mean_target"].is_nan().to_list()[:5] == [True] * 4 + [False]


def test_rows_with_unseen_ids_do_not_count(trained, tmp_path):
    split, plan, fitted = trained
    log = split.train
    user, item = log.user.copy(), log.item.copy()
    user[::5], item[::3] = -1, -1
    seen = (user >= 0) & (item >= 0)
    for name, rows in (("with", replace(log, user=user, item=item)), ("without", log[seen])):
        save_run(
            tmp_path / name,
            trained_run(rows, fitted.model, plan, fitted.validation_records, {}, {}),
        )
    one, two = load_run(tmp_path / "with"), load_run(tmp_path / "without")
    assert one.items.equals(two.items)
    assert one.users.equals(two.users)


# Where it is written.


def test_a_second_run_replaces_the_first(trained, run):
    save(run, trained, result={"x": 1})
    assert load_run(run).result == {"x": 1}
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_an_empty_folder_is_replaced(trained, tmp_path):
    (tmp_path / "run").mkdir()
    load_run(save(tmp_path / "run", trained))


@pytest.mark.parametrize("kind", ["file", "folder", "folder with a config", "broken link"])
def test_nothing_else_is_ever_replaced(trained, tmp_path, kind):
    place = tmp_path / "mine"
    if kind == "file":
        place.write_text("dear diary")
    elif kind == "broken link":
        place.symlink_to(tmp_path / "gone")
    else:
        place.mkdir()
        (place / ("config.json" if "config" in kind else "thesis.tex")).write_text("{}")
    with pytest.raises(CelrecError, match="is there and no run folder; choose another place"):
        save(place, trained)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert os.path.lexists(place)


@pytest.mark.parametrize("place", [".", "/", "..", "some/.."])
def test_a_run_needs_a_folder_of_its_own(place):
    with pytest.raises(CelrecError, match="a run needs a folder of its own; name a new one"):
        check_place(place)


# Damage.


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "result.json", "users.parquet", "items.parquet"]
)
@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "gone"])
def test_a_damaged_file_is_told_in_one_line(run, name, damage):
    path = run / name
    content = {"cut": path.read_bytes()[:-30], "empty": b"", "noise": b"\xff\xfe" * 50}
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[damage])
    with pytest.raises(CelrecError) as told:
        load_run(run)
    assert str(told.value).startswith(str(run))
    assert "\n" not in str(told.value)


def test_another_format_and_a_stranger_are_told(run, tmp_path):
    with pytest.raises(CelrecError, match="not a run folder"):
        load_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": 99}))
    with pytest.raises(CelrecError, match="format 99"):
        load_run(run)
    (run / "config.json").write_text(json.dumps(config))
    (run / "model.safetensors").unlink()
    with pytest.raises(CelrecError, match="damaged run folder"):
        load_run(run)


@pytest.mark.parametrize("embedding", ["cel", "full", "modulo", "cel-lite"])
def test_a_run_without_levels_that_starts_from_one_cluster_is_read(embedding, tmp_path):
    split = Split.random(PLANTED.interactions())
    plan = Plan(embedding, "5", model="mf", rank=8)
    model = small_model(split.train, plan)
    path = tmp_path / "run"
    save_run(path, trained_run(split.train, model, plan, {}, {}, {}))
    config = json.loads((path / "config.json").read_text())
    config["plan"]["start"] = "one"  # as earlier versions had it for every embedding
    del config["plan"]["levels"]
    (path / "config.json").write_text(json.dumps(config))
    found = load_run(path)
    assert found.plan == replace(plan, start="one")
    assert torch.equal(found.model.predict(split.test), model.eval().predict(split.test))


def test_a_table_without_ids_is_told(run):
    table = pl.read_parquet(run / "items.parquet")
    table.drop("id").write_parquet(run / "items.parquet")
    with pytest.raises(CelrecError, match="damaged run folder"):
        load_run(run)


def places(value, at=()):
    """The keys to every value of nested dicts."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))


@given(data=st.data())
@settings(max_examples=60)
def test_a_config_that_was_meddled_with_is_told_or_does_no_harm(data, trained, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "meddled"
    if not folder.exists():
        save(folder, trained)
    kept = (folder / "config.json").read_text()
    config = json.loads(kept)
    *way, last = data.draw(st.sampled_from([at for at in places(config) if at]))
    inner = config
    for key in way:
        inner = inner[key]
    if data.draw(st.booleans()):
        odd = st.sampled_from([None, [], {}, "x", "", -1, 0, 3.5, 10**30, True])
        inner[last] = data.draw(odd)
    else:
        del inner[last]
    try:
        (folder / "config.json").write_text(json.dumps(config))
        load_run(folder)
    except CelrecError as error:
        told = str(error)
    else:
        told = ""
    finally:
        (folder / "config.json").write_text(kept)
    assert "\n" not in told


@pytest.mark.parametrize("budget", [None, 0, 10**9])
@pytest.mark.parametrize("model", ["mf", "deepfm"])
def test_levels_come_back_within_any_budget(tmp_path, model, budget):
    log, plan = small_log(), Plan("cel", "5", rank=6, model=model, side="both")
    log = log if plan.network else replace(log, columns={})
    made = small_model(log, plan, levels=3)
    save_run(tmp_path / "run", trained_run(log, made, plan, {}, {}, {}))
    room = None if budget is None else MemoryBudget(budget=budget)
    back = load_run(tmp_path / "run", budget=room).model
    assert isinstance(back.tables["items"], LevelledEmbedding)
    assert torch.equal(back.predict(log), made.predict(log))
    unseen = back.items(torch.tensor([-1]))
    back.items.grow(1_000)
    assert torch.equal(back.items(torch.tensor([999])), unseen)
