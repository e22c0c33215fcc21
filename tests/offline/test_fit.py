import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from celrec import CelrecError, Planted, Split, read
from celrec.config.building import make_model, starting_clusters
from celrec.config.offline import Schedule
from celrec.config.plan import Plan
from celrec.config.presets import PRESETS
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.evaluation.cluster_diagnostics import ClusterDiagnostics, adjusted_rand_index
from celrec.offline.compression import Compression
from celrec.offline.fitting import fit
from celrec.offline.training import OfflineTraining
from celrec.recommender.negatives import Negatives


@pytest.fixture
def quick(monkeypatch):
    for presets in PRESETS.values():
        for name in {"default", "least-squares"} & presets.keys():
            schedule = replace(presets[name].schedule, steps=30)
            personal = Schedule(20, 0, 0, 0, validate_every=1)
            how = replace(presets[name], schedule=schedule, personal=personal)
            monkeypatch.setitem(presets, name, how)


@pytest.fixture(scope="module")
def split():
    planted = Planted(rows=4000, users=50, items=60, dim=3, item_clusters=4, noise=0.3)
    return Split.random(planted.interactions())


def error(model, log):
    return float(np.mean((model.predict(log).numpy() - log.target) ** 2))


def item_clusters(fitted):
    return fitted.model.item_rows.assignment[:-1].tolist()


# The tables.


@pytest.mark.parametrize(
    ("side", "embedding", "kinds"),
    [
        ("items", "cel", (FullEmbedding, ClusteredEmbedding)),
        ("users", "cel", (ClusteredEmbedding, FullEmbedding)),
        ("both", "cel", (ClusteredEmbedding, ClusteredEmbedding)),
        ("items", "modulo", (FullEmbedding, ModuloEmbedding)),
        ("both", "modulo", (ModuloEmbedding, ModuloEmbedding)),
        ("both", "full", (FullEmbedding, FullEmbedding)),
    ],
)
@pytest.mark.parametrize("model", ["nmf", "mf"])
def test_the_compressed_sides_get_the_method(split, side, embedding, kinds, model):
    made = make_model(split.train, Plan(embedding, "10%", side, rank=5, model=model))
    assert (type(made.user_rows), type(made.item_rows)) == kinds
    assert isinstance(made.users, BiasedEmbedding) == (model == "mf")
    for table, ids, kind in zip((made.user_rows, made.item_rows), (50, 60), kinds, strict=True):
        assert (table.num_embeddings, table.embedding_dim) == (ids, 5)
        if kind is ClusteredEmbedding:
            assert (table.max_clusters, table.num_clusters) == (ids // 10, 1)
        if kind is ModuloEmbedding:
            assert table.num_rows == ids // 10


def test_without_a_rank_it_is_that_of_the_preset(split):
    made = make_model(split.train, Plan(preset="paper"))
    assert made.items.embedding_dim == 64


# What is learned.


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("embedding", ["cel", "modulo", "full"])
@pytest.mark.parametrize("model", ["nmf", "mf"])
def test_every_method_learns_something(split, embedding, model):
    fitted = fit(split, Plan(embedding, "5", rank=4, model=model))
    assert error(fitted.model, split.test) < 0.9 * np.var(split.test.target)
    assert fitted.growth is None


@pytest.mark.usefixtures("quick")
def test_the_same_plan_gives_the_same_model_and_another_seed_another(split):
    one, same, other = (fit(split, Plan("cel", "5", rank=4, seed=s)).model for s in (0, 0, 1))
    assert torch.equal(one.users.weight, same.users.weight)
    assert not torch.equal(one.users.weight, other.users.weight)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("personalise", ["none", "20"])
def test_what_comes_out_is_trained_on_all_for_the_steps_that_were_chosen(split, personalise):
    plan = Plan("cel", "5", rank=4, preset="least-squares", personalise=personalise)
    watched = []
    fitted = fit(split, plan, lambda stage, record: watched.append((stage, record)))
    stages = ["choose", "personalise"][: 1 if personalise == "none" else 2]
    assert list(fitted.validation_records) == list(fitted.chosen) == stages
    for stage in stages:
        assert fitted.validation_records[stage] == [j for s, j in watched if s == stage]
        best = min(fitted.validation_records[stage], key=lambda record: record.valid_loss)
        assert fitted.chosen[stage] == best
    anew = [record.step for stage, record in watched if stage.endswith("anew")]
    assert anew == [fitted.chosen[stage].step for stage in stages]
    assert fitted.steps == sum(anew)
    assert fitted.valid_loss == fitted.chosen[stages[-1]].valid_loss
    refit = make_model(split.train_and_valid(), replace(plan, personalise="none"))
    how = plan.settings()
    steps = replace(how.schedule, steps=anew[0], validate_every=anew[0])
    training = OfflineTraining(
        refit, split.train_and_valid(), split.test[:0], replace(how, schedule=steps)
    )
    training.start()
    training.run()
    if personalise == "none":
        assert torch.equal(refit.items.weight, fitted.model.items.weight)
    else:
        warm = split.train_and_valid().item_counts > 20
        assert fitted.model.items.private(torch.arange(60)).tolist() == warm.tolist()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("model", ["nmf", "mf"])
def test_tables_are_compressed_from_a_full_fit_for_the_steps_that_were_chosen(split, model, levels):
    plan = Plan("cel", "6", rank=4, model=model, levels=levels)
    watched = []
    fitted = fit(split, plan, lambda stage, record: watched.append((stage, record)))
    assert list(dict.fromkeys(stage for stage, _ in watched)) == [
        *("choose", "compress", "train anew", "compress anew"),
    ]
    assert list(fitted.validation_records) == list(fitted.chosen) == ["choose", "compress"]
    full = fit(split, plan.full_fit)
    assert fitted.validation_records["choose"] == full.validation_records["choose"]
    (compressed,) = fitted.validation_records["compress"]
    assert (compressed.clusters, compressed.moved) == (6, 0)
    assert fitted.valid_loss == compressed.valid_loss < np.var(split.valid.target)
    assert fitted.steps == full.steps
    direct = make_model(split.train_and_valid(), plan)
    how = plan.settings().compression
    Compression(direct, full.model, split.train_and_valid(), how, plan.seed).run()
    expected = direct.predict(split.test)
    assert torch.allclose(fitted.model.predict(split.test), expected, rtol=1e-3)


def test_any_size_is_compressed_from_the_same_full_fit():
    plans = [
        Plan("cel", "5", model="nmf"),
        Plan("cel", "1%", model="mf", levels=3),
        Plan("full", model="nmf"),
    ]
    fits = {replace(plan.full_fit, compression="1%") for plan in plans}
    assert fits == {Plan("full", model="mf", rank=32)}


@pytest.mark.parametrize(
    "options",
    [
        {"start": "one"},
        {"frozen": True},
        {"compression": "auto"},
        {"personalise": "all"},
        {"embedding": "modulo"},
        {"preset": "least-squares"},
    ],
)
def test_clusters_that_learn_from_the_data_need_no_full_fit(options):
    plan = Plan(model="mf", **options)
    assert plan.full_fit is None
    with pytest.raises(CelrecError, match="levels"):
        replace(plan, levels=2)


# Rows of their own.


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("side", ["items", "both"])
@pytest.mark.parametrize("model", ["nmf", "mf"])
@pytest.mark.parametrize(("personalise", "above"), [("all", 0), ("20", 20), ("999999", 999999)])
def test_who_has_data_enough_gets_a_row(split, side, model, personalise, above):
    fitted = fit(split, Plan("cel", "5", side, 4, model=model, personalise=personalise))
    everything = split.train_and_valid()
    counts = {"user": everything.user_counts, "item": everything.item_counts}
    for name, table in (("user", fitted.model.user_rows), ("item", fitted.model.item_rows)):
        if name == "user" and side == "items":
            assert type(table) is FullEmbedding
            continue
        assert type(table) is MixedEmbedding
        private = table.private(torch.arange(table.num_embeddings))
        assert private.tolist() == (counts[name] > above).tolist()
        assert table.num_rows == int(private.sum()) + table.shared_rows
        assert 1 <= table.shared_rows <= 5
        assert len(table.weight) == table.num_rows
    assert set(fitted.chosen) == {"choose", "personalise"}
    # It goes on from what the clusters have learned, and tells so from the first step on.
    assert fitted.validation_records["personalise"][0].train_loss < 0.5 * np.var(split.train.target)


# As many clusters as validation data call for.


@pytest.mark.parametrize("seed", range(3))
def test_auto_finds_exactly_the_clusters_that_were_planted(seed):
    planted = Planted(60_000, 400, 300, dim=4, item_clusters=12, noise=0.0, seed=seed)
    log = planted.interactions()
    split, plan = Split.random(log), Plan(compression="auto", rank=8)
    fitted = fit(split, plan)
    truth = planted.item_cluster[log.item_ids.ids.to_numpy()]
    found = item_clusters(fitted)
    assert fitted.model.items.num_clusters == 12
    assert adjusted_rand_index(found, truth) >= 0.99
    assert error(fitted.model, split.test) < 0.01 * np.var(split.test.target)

    # Grown past that number, rows come in copies: there are no more than 12 different ones.
    grown = make_model(split.train, plan)
    training = OfflineTraining(grown, split.train, split.valid, plan.settings())
    training.start()
    training.run()
    table = grown.items
    rows, clusters = table.weight[: table.num_clusters], table.assignment[:-1].long()
    copies = ClusterDiagnostics.of(rows, clusters, log, tolerance=0.1).duplicate_rows
    assert table.num_clusters - copies == 12
    assert copies > 0

    tried, best = training.grown_to["items"], table.num_clusters
    assert tried > best
    assert fitted.growth == (
        f"up to {tried} clusters of items were tried; validation error was no longer lower than "
        f"{training.best.valid_loss:.6g} with {best}, of which {best - 12} could be merged with "
        "others without loss"
    )


def test_auto_stops_early_where_there_is_nothing_to_find():
    rng = np.random.default_rng(0)
    ids = {"user": rng.integers(100, size=10_000), "item": rng.integers(200, size=10_000)}
    split = Split.random(read({**ids, "rating": rng.normal(3, 1, 10_000)}))
    fitted = fit(split, Plan(compression="auto", rank=4))
    assert fitted.model.items.num_clusters <= 5
    assert fitted.growth.startswith("up to ")
    assert error(fitted.model, split.test) < 1.1 * np.var(split.test.target)


@pytest.mark.parametrize("side", ["users", "both"])
def test_auto_tells_of_the_sides_that_grow(side):
    planted = Planted(20_000, 100, 80, dim=3, item_clusters=5, user_clusters=4, noise=0.0)
    split = Split.random(planted.interactions())
    fitted = fit(split, Plan("cel", "auto", side, 6))
    assert ("of users" in fitted.growth, "of items" in fitted.growth) == (True, side == "both")
    users = fitted.model.users.assignment[:-1].tolist()
    truth = planted.user_cluster[split.train.user_ids.ids.to_numpy()]
    assert adjusted_rand_index(users, truth) > 0.9
    if side == "both":
        truth = planted.item_cluster[split.train.item_ids.ids.to_numpy()]
        assert adjusted_rand_index(item_clusters(fitted), truth) > 0.9
    else:
        assert type(fitted.model.items) is FullEmbedding


def test_auto_tells_when_the_steps_were_not_enough(monkeypatch, split):
    short = replace(PRESETS["nmf"]["least-squares"].schedule, steps=4)
    how = replace(PRESETS["nmf"]["least-squares"], schedule=short)
    monkeypatch.setitem(PRESETS["nmf"], "least-squares", how)
    growth = fit(split, Plan(compression="auto", rank=4)).growth
    assert "were tried; validation error was lowest at the last of 4 steps, " in growth


# Clusters to start from.


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("start", ["random:4", "ratings:4", "one"])
@pytest.mark.parametrize("model", ["nmf", "mf"])
def test_frozen_clusters_are_those_of_the_start(split, start, model):
    plan = Plan("cel", "2", "both", 3, model=model, start=start, frozen=True, seed=3)
    fitted = fit(split, plan)
    everything = split.train_and_valid()
    for side, table in (("users", fitted.model.user_rows), ("items", fitted.model.item_rows)):
        expected = starting_clusters(start, everything, side, 3)
        assert table.assignment[:-1].tolist() == expected.tolist()
        assert table.num_clusters == table.max_clusters == expected.max() + 1
    assert all(record.moved == 0 for record in fitted.validation_records["choose"])


@pytest.mark.usefixtures("quick")
def test_clusters_of_a_run_can_be_kept(split, tmp_path):
    ids = split.train.item_ids.ids
    labels = [j % 3 for j in range(len(ids))]
    pl.DataFrame({"id": ids, "cluster": labels}).reverse().write_parquet(tmp_path / "items.parquet")
    fitted = fit(split, Plan(rank=3, start=str(tmp_path), frozen=True))
    assert item_clusters(fitted) == labels


@pytest.mark.usefixtures("quick")
def test_clusters_grow_from_those_of_the_start(split):
    fitted = fit(split, Plan("cel", "9", rank=3, start="ratings:4"))
    assert all(record.clusters >= 4 for record in fitted.validation_records["choose"])
    assert fitted.model.items.num_clusters <= 9
    assert fitted.model.items.parent[:4].tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (
            Plan(compression="3", start="random:4"),
            "start 'random:4' has 4 clusters of items, but compression '3' allows 3; raise it",
        ),
        (
            Plan(compression="1%", side="users", start="ratings:2"),
            "start 'ratings:2' has 2 clusters of users, but compression '1%' allows 1; raise it",
        ),
        (Plan(start="genres"), "no genres of items"),
        (Plan(start="nowhere"), "start must be one of"),
        (Plan(start="random"), "start needs a number of clusters"),
    ],
)
def test_a_start_that_cannot_be_is_told(split, plan, told):
    with pytest.raises(CelrecError, match=told):
        fit(split, plan)


# Odd data.


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("personalise", ["none", "all"])
def test_without_validation_data_all_steps_are_taken_and_nothing_is_said_about_errors(
    split, personalise
):
    nothing = replace(split, valid=split.valid[:0])
    fitted = fit(nothing, Plan("cel", "5", rank=3, personalise=personalise))
    assert fitted.valid_loss is None
    assert fitted.steps == (30 if personalise == "none" else 50)
    assert all(math.isnan(record.valid_loss) for record in fitted.validation_records["choose"])
    assert error(fitted.model, split.test) < np.var(split.test.target)


def test_auto_without_validation_data_is_told(split):
    nothing = replace(split, valid=split.valid[:0])
    with pytest.raises(CelrecError, match="compression 'auto' needs validation data"):
        fit(nothing, Plan(compression="auto"))


@pytest.mark.parametrize("embedding", ["full", "modulo", "cel"])
def test_a_preset_that_diverges_is_told(split, embedding, monkeypatch):
    short = replace(PRESETS["nmf"]["paper"], schedule=Schedule(steps=20, validate_every=10))
    monkeypatch.setitem(PRESETS["nmf"], "paper", short)
    large = Split(*(replace(part, target=part.target * 1e4) for part in _parts(split)))
    with pytest.raises(CelrecError, match="diverged") as told:
        fit(large, Plan(embedding, "5", rank=3, preset="paper"))
    assert "\n" not in str(told.value)


def _parts(split):
    return split.train, split.valid, split.test


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("model", ["nmf", "mf"])
@pytest.mark.parametrize("start", ["one", "ratings:3"])
def test_unseen_ids_are_not_learned_from(split, model, start):
    def with_unseen(log):
        user, item = log.user.copy(), log.item.copy()
        user[::9], item[::7] = -1, -1
        return replace(log, user=user, item=item)

    strange = Split(*map(with_unseen, _parts(split)))
    plan = Plan("cel", "5", rank=3, model=model, start=start, personalise="20")
    fitted = fit(strange, plan)
    predicted = fitted.model.predict(strange.test)
    assert torch.isfinite(predicted).all()
    assert error(fitted.model, strange.test) < np.var(strange.test.target)


@pytest.mark.parametrize("preset", ["default", "hard"])
def test_who_learned_online_got_rows_of_their_own_on_the_way(split, preset):
    plan = Plan(
        embedding="cel-lite", compression="4", model="mf", preset=preset, personalise="20", rank=3
    )

    def short(how):
        return replace(how, schedule=replace(how.schedule, steps=2))

    fitted = fit(split, plan, change=short)
    assert list(fitted.validation_records) == ["choose"]
    assert fitted.steps <= 2
    items = fitted.model.whole_tables["items"]
    warm = torch.from_numpy(split.train_and_valid().item_counts > 20)
    assert bool((items.own_of(torch.arange(len(warm))) >= 0)[warm].all())


@pytest.mark.parametrize(
    "plan",
    [
        Plan(model="mf", rank=3, compression="4", negatives=3),
        Plan(model="nmf", rank=3, compression="4", negatives=3),
        Plan(
            embedding="cel-lite",
            model="mf",
            rank=3,
            compression="4",
            negatives=3,
            loss="cross-entropy",
        ),
    ],
    ids=lambda plan: f"{plan.model} {plan.embedding}",
)
def test_one_of_four_happened_where_three_were_drawn_beside_it(plan):
    log = Planted(4_000, 200, 600, dim=2, item_clusters=4).interactions()
    split = Split.random(plan.prepared(log), test=0)
    fitted = fit(split, plan)
    drawn = Negatives(log).beside(split.train, seed=99, count=3)
    predicted = fitted.model.predict(drawn).numpy()
    assert predicted.mean() == pytest.approx(0.25, abs=0.07)
    assert predicted[: len(split.train)].mean() > predicted[len(split.train) :].mean()
    assert (fitted.trainer is None) == (plan.embedding == "cel")
