"""What `fit` does with networks; see test_fit for factorisations."""

import math
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch

from celrec import CelrecError, Planted, Split, read
from celrec.config import building
from celrec.config.offline import ROWS, Schedule
from celrec.config.plan import Plan
from celrec.config.presets import PRESETS
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.models.registry import MODELS
from celrec.offline.checkpoint import Checkpoint
from celrec.offline.fitting import fit
from celrec.runs.run_folder import load_run, save_run, trained_run
from tests.offline.test_checkpoint import Stopped, assert_same

PRETRAINED = ("deepfm", "din", "dien", "neumf")


@pytest.fixture(autouse=True, scope="module")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        for model, presets in PRESETS.items():
            for name, how in presets.items():
                steps = 6 if model in MODELS else 12
                moves = {"split_every": 1, "growth": 0.3, "reassign_every": 2}
                if how.takes_over == ROWS:
                    moves = {"split_every": 0, "reassign_every": 0}
                schedule = replace(how.schedule, steps=steps, validate_every=2, **moves)
                how = replace(
                    how, schedule=schedule, personal=Schedule(4, 0, 0, 0, validate_every=2)
                )
                if model in MODELS and how.takes_over != ROWS:
                    how = replace(how, solver=replace(how.solver, rounds=4, learning_rate=0.03))
                patch.setitem(presets, name, how)
        patch.setattr(building, "HISTORY_LENGTH", 4)
        yield


@cache
def log():
    """Ratings with shops, of which some are missing, and features on both sides."""
    planted = Planted(1000, 30, 40, dim=2, item_clusters=4, noise=0.2)
    rows = planted.interactions().to_frame()
    shops = [None if n % 9 == 0 else f"shop {n * 7 % 13}" for n in range(1000)]
    return read(
        rows.with_columns(shop=pl.Series(shops)),
        columns=["shop"],
        user_features=pl.DataFrame({"user": range(30), "city": [n % 3 for n in range(30)]}),
        item_features=pl.DataFrame({"item": range(40), "genres": [["a", "b"], ["c"]] * 20}),
    )


@cache
def split(columns=False, features=True):
    made = log() if columns else replace(log(), columns={})
    if not features:
        made = replace(made, user_features=None, item_features=None)
    return Split.random(made)


def plan_of(model, **how):
    rank = 10 if model == "neumf" else 4
    positive = 3.5 if model == "mmoe" else None
    return Plan(**{"compression": "5", "rank": rank, "positive": positive, "model": model, **how})


def error(model, rows):
    return float(np.mean((model.predict(rows).numpy() - rows.target) ** 2))


# Every network.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("columns", [False, True])
def test_every_network_learns_something(model, columns):
    parts, watched = split(columns), []
    plan = plan_of(model)
    fitted = fit(parts, plan, lambda stage, record: watched.append((stage, record)))
    assert error(fitted.model, parts.test) < np.var(parts.test.target)
    assert fitted.growth is None
    assert fitted.model.items.num_clusters > 1
    stages = ["choose", "finish"] if model in PRETRAINED else ["choose"]
    assert list(fitted.validation_records) == list(fitted.chosen) == stages
    for stage in stages:
        assert fitted.validation_records[stage] == [j for s, j in watched if s == stage]
        best = min(fitted.validation_records[stage], key=lambda record: record.valid_loss)
        assert fitted.chosen[stage] == best
    anew = [(stage, record.step) for stage, record in watched if stage.endswith("anew")]
    assert [name for name, _ in anew] == ["train anew", "finish anew"][: len(stages)]
    assert [step for _, step in anew] == [fitted.chosen[stage].step for stage in stages]
    assert fitted.steps == sum(step for _, step in anew)
    assert fitted.valid_loss == fitted.chosen[stages[-1]].valid_loss


@pytest.mark.parametrize("model", PRETRAINED)
def test_what_is_finished_goes_on_from_the_factorisation(model):
    fitted = fit(split(), plan_of(model))
    first = fitted.validation_records["finish"][0]
    assert first.train_loss < 0.7 * np.var(split().train.target)
    # The clusters are those that the factorisation found.
    nmf = fit(split(), replace(plan_of(model).pretraining, features=True))
    assert torch.equal(fitted.model.items.assignment, nmf.model.items.assignment)
    assert fitted.validation_records["choose"] == nmf.validation_records["choose"]


@pytest.mark.parametrize("model", PRETRAINED)
def test_clusters_alone_can_be_taken_over(model):
    plan = plan_of(model, preset="clusters", penalty=3.0)
    fitted = fit(split(), plan)
    assert list(fitted.chosen) == ["choose", "finish"]
    # The factorisation is the usual one, whatever the network is told.
    nmf = fit(split(), plan.pretraining)
    assert plan.pretraining == Plan(compression="5", model="nmf")
    assert fitted.validation_records["choose"] == nmf.validation_records["choose"]
    items, learned = fitted.model.items, nmf.model.items
    assert items.num_clusters > 1
    assert torch.equal(items.assignment, learned.assignment)
    assert torch.equal(items.parent, learned.parent)
    assert items.embedding_dim == plan.dim + fitted.model.model.extra_columns
    # Rows begin from nothing.
    assert (
        fitted.validation_records["finish"][0].train_loss
        > nmf.validation_records["choose"][-1].train_loss
    )
    assert {record.moved for record in fitted.validation_records["finish"]} == {0}


def test_clusters_of_further_columns_grow_beside_those_that_are_taken_over():
    fitted = fit(split(columns=True), plan_of("din", preset="clusters"))
    assert fitted.model.whole_tables["shop"].num_clusters > 1
    alone = fit(split(), plan_of("din", preset="clusters"))
    assert torch.equal(fitted.model.items.assignment, alone.model.items.assignment)


def test_beside_clusters_that_are_taken_over_ids_can_have_rows_of_their_own():
    plan = plan_of("din", preset="clusters", personalise="all")
    fitted = fit(split(), plan)
    assert list(fitted.chosen) == ["choose", "finish", "personalise"]
    assert fitted.model.items.private_rows == split().train_and_valid().num_items
    assert plan.pretraining.personalise == "none"


@pytest.mark.parametrize(
    "other",
    [
        {"embedding": "modulo"},
        {"embedding": "full", "compression": "100%"},
        {"loss": "cross-entropy", "positive": 3.0},
    ],
)
def test_where_there_are_no_clusters_to_be_taken_over_all_begins_from_nothing(other):
    told = {"model": "din", **other}
    assert Plan(preset="clusters", **told).pretraining is None
    scratch, clusters = (Plan(preset=name, **told).settings() for name in ("scratch", "clusters"))
    assert scratch == clusters


@pytest.mark.parametrize("model", PRETRAINED)
def test_from_scratch_there_is_no_factorisation(model):
    fitted = fit(split(), plan_of(model, preset="scratch"))
    assert list(fitted.chosen) == ["choose"]
    assert fitted.model.items.num_clusters > 1


def test_the_same_plan_gives_the_same_model_and_another_seed_another():
    one, same, other = (fit(split(), plan_of("din", seed=seed)).model for seed in (0, 0, 1))
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.users.weight, other.users.weight)


# Tables.


@pytest.mark.parametrize("preset", ["default", "scratch"])
@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ({"side": "users"}, (ClusteredEmbedding, FullEmbedding)),
        ({"side": "both"}, (ClusteredEmbedding, ClusteredEmbedding)),
        ({"embedding": "modulo"}, (FullEmbedding, ModuloEmbedding)),
        ({"embedding": "full"}, (FullEmbedding, FullEmbedding)),
    ],
    ids=str,
)
def test_all_sides_and_methods_can_be_had(preset, how, kinds):
    fitted = fit(split(), plan_of("deepfm", preset=preset, **how))
    tables = fitted.model.users, fitted.model.items
    assert tuple(map(type, tables)) == kinds
    assert all(t.num_clusters > 1 for t in tables if isinstance(t, ClusteredEmbedding))
    assert error(fitted.model, split().test) < np.var(split().test.target)


@pytest.mark.parametrize("side", ["items", "both"])
def test_where_all_can_be_collapsed_it_learns_too(side):
    parts = split(features=False)
    fitted = fit(parts, plan_of("deepfm", preset="scratch", side=side))
    assert error(fitted.model, parts.test) < np.var(parts.test.target)
    assert fitted.model.items.num_clusters > 1


@pytest.mark.parametrize("preset", ["default", "scratch"])
def test_who_has_data_enough_gets_a_row(preset):
    parts = split(columns=True)
    fitted = fit(parts, plan_of("din", preset=preset, side="both", personalise="20"))
    stages = ["choose", "personalise", "finish"][: 3 if preset == "default" else 2]
    assert list(fitted.chosen) == stages
    everything = parts.train_and_valid()
    counts = {"users": everything.user_counts, "items": everything.item_counts}
    if preset == "scratch":
        counts["shop"] = everything.columns["shop"].counts
    for side, number in counts.items():
        table = fitted.model.tables[side]
        assert type(table) is MixedEmbedding
        private = table.private(torch.arange(table.num_embeddings))
        assert private.tolist() == (number > 20).tolist()
    assert error(fitted.model, parts.test) < np.var(parts.test.target)


def test_ids_in_further_columns_find_clusters():
    parts = split(columns=True)
    for how in ({"preset": "scratch"}, {"loss": "cross-entropy", "positive": 3.5}):
        plan = plan_of("din", compression="4", **how)
        prepared = Split(*(plan.prepared(p) for p in (parts.train, parts.valid, parts.test)))
        fitted = fit(prepared, plan)
        shops = fitted.model.tables["shop"]
        assert shops.num_clusters > 1
        assert len(set(shops.assignment[:-1].tolist())) == shops.num_clusters


@pytest.mark.parametrize("preset", ["default", "scratch"])
def test_validation_data_can_choose_the_clusters(preset):
    parts = split(columns=True)
    fitted = fit(parts, plan_of("din", preset=preset, compression="auto"))
    assert "clusters of items" in fitted.growth
    assert ("clusters of shop" in fitted.growth) == (preset == "scratch")
    items = fitted.model.items
    assert items.num_clusters == items.max_clusters
    assert next(iter(fitted.chosen)) == "choose"


def test_clusters_can_be_given_and_kept():
    for preset in ("default", "scratch"):
        plan = plan_of("din", preset=preset, start="random:4", frozen=True)
        fitted = fit(split(), plan)
        assert fitted.model.items.num_clusters == 4
        assert all(record.moved == 0 for record in fitted.validation_records["choose"])


# Losses.


@pytest.mark.parametrize("model", ["dien", "deepfm", "widedeep"])
@pytest.mark.parametrize("loss", ["cross-entropy", "ranking"])
def test_other_losses_are_learned_without_a_factorisation(model, loss):
    plan = plan_of(model, loss=loss, positive=3.5)
    parts = Split.random(plan.prepared(replace(log(), columns={})))
    fitted = fit(parts, plan)
    assert list(fitted.chosen) == ["choose"]
    assert fitted.model.items.num_clusters > 1
    assert plan.settings().schedule == replace(plan, preset=_scratch(model)).settings().schedule
    predicted = fitted.model.predict(parts.test)
    assert predicted.isfinite().all()
    if loss == "cross-entropy":
        assert 0 < float(predicted.min()) < float(predicted.max()) < 1
        assert set(parts.train.target.tolist()) == {0.0, 1.0}
    else:
        assert float(parts.train.target.min()) >= 3.5
    assert all(j.valid_loss < 0.9 for j in fitted.validation_records["choose"])


def _scratch(model):
    return "scratch" if model in PRETRAINED else "default"


# Odd data.


def test_without_validation_data_all_steps_are_taken():
    nothing = replace(split(), valid=split().valid[:0])
    fitted = fit(nothing, plan_of("din"))
    assert fitted.valid_loss is None
    assert fitted.steps == 12 + 6
    assert all(math.isnan(record.valid_loss) for record in fitted.validation_records["finish"])


def test_a_log_without_times_and_with_unseen_ids_does_no_harm():
    def strange(rows):
        user, item = rows.user.copy(), rows.item.copy()
        user[::9], item[::7] = -1, -1
        return replace(rows, user=user, item=item, timestamp=None)

    parts = split(columns=True)
    parts = Split(*map(strange, (parts.train, parts.valid, parts.test)))
    for model in ("dien", "mmoe"):
        fitted = fit(parts, plan_of(model))
        assert fitted.model.predict(parts.test).isfinite().all()
        assert error(fitted.model, parts.test) < 1.2 * np.var(parts.test.target)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("model", ["dien", "widedeep"])
def test_few_rows_are_enough(rows, model):
    parts = Split.random(log()[1 : rows + 1].compact())
    fitted = fit(parts, plan_of(model))
    assert all(bool(value.isfinite().all()) for value in fitted.model.state_dict().values())


# Mistakes.


def test_what_a_model_or_a_loss_is_not_for_is_told():
    with pytest.raises(CelrecError, match="'nmf' looks at users and items only, not at column 'sh"):
        fit(split(columns=True), Plan(rank=3))
    nothing = log().to_frame().with_columns(shop=pl.lit(None, dtype=pl.String))
    with pytest.raises(CelrecError, match="column 'shop' holds no ids at all; leave it out"):
        fit(Split.random(read(nothing, columns=["shop"])), plan_of("din"))
    with pytest.raises(CelrecError, match="loss 'cross-entropy' is for targets 0 and 1; say from"):
        fit(split(), plan_of("din", loss="cross-entropy"))
    with pytest.raises(CelrecError, match="positive is missing: model 'mmoe' also learns"):
        Plan(model="mmoe")
    with pytest.raises(CelrecError, match="loss must be one of squared-error, not 'ranking'"):
        plan_of("mmoe", loss="ranking")
    with pytest.raises(CelrecError, match="loss must be one of squared-error, not 'ranking'"):
        Plan(model="nmf", loss="ranking")


# Stopped and resumed, saved and loaded.

PLANS = [
    plan_of("din", personalise="20"),
    plan_of("dien", loss="ranking"),
    plan_of("deepfm", preset="scratch", compression="auto", personalise="all"),
    plan_of("mmoe"),
    plan_of("neumf", embedding="modulo"),
    plan_of("widedeep", embedding="full"),
]


@cache
def never_stopped(plan):
    return fit(split(columns=True), plan)


@pytest.mark.parametrize("plan", PLANS[:3], ids=lambda plan: plan.model)
def test_training_that_is_stopped_now_and_then_comes_to_the_same(plan, tmp_path):
    attempts = 0
    while True:
        attempts += 1
        seen = 0

        def watch(_, __):
            nonlocal seen
            seen += 1
            if seen == 4:
                raise Stopped

        checkpoint = Checkpoint(tmp_path / "state", asdict(plan), resume=True, every=0.0)
        try:
            fitted = fit(split(columns=True), plan, watch, checkpoint)
            break
        except Stopped:
            assert attempts < 50
    assert attempts > 1
    assert_same(fitted, never_stopped(plan))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.model)
def test_what_is_loaded_predicts_as_what_was_saved(plan, tmp_path):
    parts, fitted = split(columns=True), never_stopped(plan)
    learned = parts.train_and_valid()
    save_run(
        tmp_path / "run",
        trained_run(learned, fitted.model, plan, fitted.validation_records, {}, {}),
    )
    run = load_run(tmp_path / "run")
    user, item = parts.test.user.copy(), parts.test.item.copy()
    user[::3], item[::4] = -1, -1
    early = replace(parts.test, timestamp=parts.test.timestamp - 10**7)
    for rows in (parts.test, replace(parts.test, user=user, item=item), early):
        assert torch.equal(run.model.predict(rows), fitted.model.predict(rows))
    # Read anew by the ids that the run knows, as other data would be.
    events = read(parts.test.to_frame(), columns=["shop"], like=run.known)
    assert torch.equal(run.model.predict(events), fitted.model.predict(parts.test))
    assert run.plan == plan
    assert run.columns.keys() == {"shop"}
    shops = run.columns["shop"]
    assert shops["id"].to_list() == learned.columns["shop"].ids.ids.to_list()
    assert shops["interactions"].to_list() == learned.columns["shop"].counts.tolist()
    table = fitted.model.tables["shop"]
    assert ("cluster" in shops.columns) == isinstance(table, ClusteredEmbedding)
    if isinstance(table, ClusteredEmbedding):
        assert shops["cluster"].to_list() == table.assignment[:-1].tolist()
    history = (tmp_path / "run/history.parquet").exists()
    assert history == (plan.model in ("din", "dien"))
    for n, (count, mean) in enumerate(shops.select("interactions", "mean_target").iter_rows()):
        own = learned.target[learned.columns["shop"].values == n]
        assert mean == pytest.approx(own.mean()) if count else math.isnan(mean)


def test_what_people_did_before_makes_a_difference(tmp_path):
    plan, parts = PLANS[0], split(columns=True)
    fitted = never_stopped(plan)
    early = replace(parts.test, timestamp=parts.test.timestamp - 10**9)
    model = fitted.model
    assert not torch.equal(model.predict(early), model.predict(parts.test))
    save_run(
        tmp_path / "run",
        trained_run(parts.train_and_valid(), model, plan, fitted.validation_records, {}, {}),
    )
    (tmp_path / "run/history.parquet").unlink()
    with pytest.raises(CelrecError, match="damaged run folder"):
        load_run(tmp_path / "run")
