import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import celrec
from celrec import CelrecError
from celrec.config.building import describe_model, make_model, rebuild_model
from celrec.config.plan import Plan
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.models.registry import MODELS
from celrec.recommender.clusters import personalise

POSITIVE = {"mmoe": 3.0}


@pytest.fixture(scope="module")
def log():
    log = celrec.Planted(rows=400, users=20, items=25, dim=2, item_clusters=3).interactions()
    shops = pl.Series([None if n % 5 == 0 else f"shop {n % 8}" for n in range(400)])
    return celrec.read(
        log.to_frame().with_columns(shop=shops),
        columns=["shop"],
        user_features=pl.DataFrame({"user": range(20), "city": [n % 3 for n in range(20)]}),
        item_features=pl.DataFrame(
            {
                "item": range(25),
                "genres": [["a", "b"], ["c"]] * 12 + [[]],
                "year": [n % 4 for n in range(25)],
            }
        ),
    )


def plan_of(model, **how):
    return Plan(**{"rank": 9, "model": model, "positive": POSITIVE.get(model), **how})


def without_columns(log):
    return replace(log, columns={})


def assert_same_predictions(one, two, log):
    user, item = log.user.copy(), log.item.copy()
    user[::3], item[::4] = -1, -1
    for rows in (log, replace(log, user=user, item=item)):
        assert torch.equal(one.predict(rows), two.predict(rows))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "how",
    [
        {"compression": "5"},
        {"compression": "5", "side": "both"},
        {"embedding": "modulo", "compression": "5", "seed": 3},
        {"embedding": "full"},
        {"features": False},
        {"compression": "5", "start": "random:4"},
    ],
    ids=str,
)
def test_a_network_that_is_described_and_made_anew_predicts_the_same(log, model, how):
    plan = plan_of(model, **how)
    made = make_model(log, plan)
    description = json.loads(json.dumps(describe_model(made)))
    again = rebuild_model(plan, description)
    again.load_state_dict(made.state_dict())
    for each in (made, again):
        each.remember(log)
    assert_same_predictions(made, again, log)
    assert str(again) == str(made)
    assert describe_model(again) == describe_model(made)
    assert again.history_length == made.history_length == (20 if "di" in model else 0)


@pytest.mark.parametrize("model", MODELS)
def test_personal_rows_are_made_anew_too(log, model):
    plan = plan_of(model, compression="3", side="both", start="random:3")
    made = personalise(make_model(log, plan), log, 15)
    again = rebuild_model(plan, json.loads(json.dumps(describe_model(made))))
    again.load_state_dict(made.state_dict())
    for each in (made, again):
        each.remember(log)
    assert_same_predictions(made, again, log)


@pytest.mark.parametrize("model", ["nmf", "mf"])
@pytest.mark.parametrize("embedding", ["cel", "modulo", "full"])
def test_a_factorisation_that_is_described_and_made_anew_predicts_the_same(log, model, embedding):
    log, plan = without_columns(log), Plan(embedding, "4", "both", 3, model=model)
    made = make_model(log, plan)
    again = rebuild_model(plan, json.loads(json.dumps(describe_model(made))))
    again.load_state_dict(made.state_dict())
    assert_same_predictions(made, again, log)


# What is made.


@pytest.mark.parametrize(
    ("side", "embedding", "kinds"),
    [
        ("items", "cel", (FullEmbedding, ClusteredEmbedding, ClusteredEmbedding)),
        ("users", "cel", (ClusteredEmbedding, FullEmbedding, ClusteredEmbedding)),
        ("both", "modulo", (ModuloEmbedding,) * 3),
        ("both", "full", (FullEmbedding,) * 3),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_further_columns_are_compressed_as_the_sides_are(log, model, side, embedding, kinds):
    made = make_model(log, plan_of(model, embedding=embedding, compression="4", side=side))
    assert tuple(map(type, made.tables.values())) == kinds
    assert list(made.tables) == ["users", "items", "shop"]
    width = 9 + made.model.extra_columns
    for table, ids in zip(made.tables.values(), (20, 25, 8), strict=True):
        assert (table.num_embeddings, table.embedding_dim) == (ids, width)
        if isinstance(table, ClusteredEmbedding):
            assert (table.max_clusters, table.num_clusters) == (4, 1)


def test_features_are_seen_if_they_are_wanted(log):
    seen = make_model(log, plan_of("din"))
    assert (len(seen.user_features), len(seen.item_features)) == (1, 2)
    blind = make_model(log, plan_of("din", features=False))
    assert (len(blind.user_features), len(blind.item_features)) == (0, 0)


def test_the_seed_of_the_plan_decides_and_nobody_elses(log):
    before = torch.get_rng_state()
    one, same, other = (make_model(log, plan_of("din", seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    weight = "model.tower.first.linear.weight"
    assert not torch.equal(one.state_dict()[weight], other.state_dict()[weight])


def test_each_network_has_its_loss(log):
    target = torch.tensor([1.0])
    for loss in ("squared-error", "cross-entropy", "ranking"):
        made = make_model(log, plan_of("din", loss=loss))
        told = made.loss.of_samples(torch.tensor([0.0]), target).item()
        assert told == pytest.approx(1.0 if loss == "squared-error" else np.log(2))
    made = make_model(log, plan_of("mmoe"))
    told = made.loss.of_samples(torch.tensor([[0.0, 0.0]]), target).item()
    assert told == pytest.approx(1.0 + np.log(2))


def test_given_clusters_are_taken_and_cannot_grow(log):
    given = {"items": np.arange(25) % 6, "shop": np.arange(8) % 3}
    made = make_model(log, plan_of("din", compression="9"), given)
    for side, clusters in given.items():
        table = made.tables[side]
        assert table.assignment[:-1].tolist() == clusters.tolist()
        assert table.num_clusters == table.max_clusters == clusters.max() + 1


def test_a_column_without_a_single_id_has_a_table_all_the_same(log):
    nothing = celrec.read(
        log.to_frame().with_columns(shop=pl.lit(None, dtype=pl.String)), columns=["shop"]
    )
    for embedding in ("cel", "modulo", "full"):
        made = make_model(nothing, plan_of("deepfm", embedding=embedding))
        assert made.tables["shop"].num_embeddings == 1
        assert made.predict(nothing).isfinite().all()


# Mistakes.


def test_columns_cannot_be_called_as_the_tables_of_users_and_items(log):
    for name in ("users", "items"):
        strange = replace(log, columns={name: log.columns["shop"]})
        with pytest.raises(CelrecError, match=f"{name!r} is the name of another table; rename it"):
            make_model(strange, plan_of("din"))


def test_a_start_with_too_many_clusters_is_told(log):
    with pytest.raises(CelrecError, match="start 'random:4' has 4 clusters of items, but compres"):
        make_model(log, plan_of("din", compression="3", start="random:4"))


def test_rows_that_are_too_short_for_both_parts_of_neumf_are_told(log):
    with pytest.raises(CelrecError, match="product_dim must lie in 1 … 3, not 8"):
        make_model(log, plan_of("neumf", rank=4))


def test_a_description_of_an_unknown_method_is_told(log):
    description = describe_model(make_model(log, plan_of("din")))
    description["tables"]["items"]["method"] = "magic"
    with pytest.raises(CelrecError, match="method must be one of"):
        rebuild_model(plan_of("din"), description)
