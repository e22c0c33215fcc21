"""Every embedding method that a plan can ask for, from its table to the run folder."""

import copy
from dataclasses import asdict, replace
from functools import cache, partial

import numpy as np
import polars as pl
import pytest
import torch

from celrec import CelrecError, Plan, Planted, Split, fit, read
from celrec.config import plan as plan_module
from celrec.config.building import make_model
from celrec.config.presets import ONLINE, PRESETS
from celrec.embeddings import registry as methods_module
from celrec.embeddings.description import describe_embedding, make_embedding
from celrec.embeddings.embedding import Traits
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hash_code import HashGnn, hash_codes
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.registry import Request
from celrec.offline.checkpoint import Checkpoint
from celrec.runs.run_folder import load_run, save_run, trained_run

PLANTED = Planted(rows=900, users=25, items=40, dim=3, item_clusters=4, noise=0.3)
ROWS, DIM = 10, 4
OF_BUDGETS = ("int4", "kmeans", "rq", "pq")  # made of a full fit only
METHODS = {name: one for name, one in methods_module.METHODS.items() if name not in OF_BUDGETS}
TREES = [name for name, method in METHODS.items() if method.tree]
OTHERS = [name for name in METHODS if name not in TREES]
NMF = [("nmf", name) for name in METHODS]
MF = [("mf", name) for name in OTHERS]
TWO_LEVELS = "cel, two levels"


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Fewer steps of everything."""
    with pytest.MonkeyPatch.context() as patch:
        for presets in (*PRESETS.values(), *ONLINE.values()):
            for name, how in presets.items():
                schedule = replace(how.schedule, steps=8, validate_every=2, patience=3)
                patch.setitem(presets, name, replace(how, schedule=schedule))
        tree = plan_module.TREE
        schedule = replace(tree.schedule, steps=16, validate_every=2)
        patch.setattr(plan_module, "TREE", replace(tree, schedule=schedule))
        patch.setattr(plan_module, "COMPOSED_SWEEPS", 6)
        how = HashGnn(dim=8, steps=20)
        patch.setattr(methods_module, "hash_codes", partial(hash_codes, how=how))
        yield


@cache
def split():
    return Split.random(PLANTED.interactions())


def plan_of(model, name, **options):
    if name == TWO_LEVELS:
        name, options = "cel", {"levels": 2, **options}
    return Plan(name, str(ROWS), rank=DIM, model=model, **options)


@cache
def fitted(plan):
    return fit(split(), plan)


def log_with_unseen():
    log = split().test
    user, item = log.user.copy(), log.item.copy()
    user[::3], item[::4] = -1, -1
    return replace(log, user=user, item=item)


def assert_same(one, two):
    # NaN, where nobody judges, is not equal to itself.
    assert repr(one.validation_records) == repr(two.validation_records)
    assert repr(one.chosen) == repr(two.chosen)
    assert one.training_bytes == two.training_bytes
    first, second = one.model.state_dict(), two.model.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


# Tables.


def make(name, side="items", rows=ROWS, seed=3):
    log = split().train
    ids = {"users": log.num_users, "items": log.num_items}[side]
    torch.manual_seed(seed)
    if name in ("cel", "cel-int8", "cel-lite"):
        plan = Plan(name, str(rows), side, rank=DIM, seed=seed)
        return make_model(log, plan).whole_tables[side]
    return METHODS[name].make(Request(log, side, ids, DIM, rows, seed))


@pytest.mark.parametrize("rows", [2, ROWS, 24])
@pytest.mark.parametrize("side", ["users", "items"])
@pytest.mark.parametrize("name", METHODS)
def test_a_table_keeps_its_budget_or_says_by_how_much_it_is_larger(name, side, rows):
    table = make(name, side, rows)
    held, asked = table.memory().table, rows * DIM * 4
    if not METHODS[name].compressed or name in ("etree-leaves", "jnkm-leaves"):
        assert table.overrun == 1
        assert held >= table.num_embeddings * DIM  # a row for each id, be it of bytes
    elif held > asked:
        assert table.overrun == pytest.approx(held / asked)
        assert f"{held / asked:.2f} times the requested size" in repr(table)
    else:
        assert table.overrun <= 1
        assert "times the requested size" not in repr(table)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_claims_of_itself_is_true_of_the_table_that_it_makes(name):
    table = make(name)
    assert METHODS[name].summary
    assert isinstance(table.traits, Traits)
    grown = copy.deepcopy(table)
    if table.traits.incremental:
        before = table(torch.arange(table.num_embeddings))
        grown.grow(table.num_embeddings + 3)
        assert torch.equal(grown(torch.arange(table.num_embeddings)), before)
    else:
        with pytest.raises(CelrecError, match="cannot grow from 40 to"):
            grown.grow(table.num_embeddings + 3)


@pytest.mark.parametrize("name", METHODS)
def test_a_table_is_made_again_from_its_description_and_its_state(name):
    for table in (make(name), make(name).settled()):
        fresh = make_embedding(describe_embedding(table))
        fresh.load_state_dict(copy.deepcopy(table.state_dict()))
        ids = torch.tensor([*range(table.num_embeddings), -1, 10**9])
        assert torch.equal(fresh.eval()(ids), table.eval()(ids))
        assert fresh.memory() == table.memory()


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides_the_table(name):
    ids = torch.arange(40)
    assert torch.equal(make(name, seed=5)(ids), make(name, seed=5)(ids))
    assert not torch.equal(make(name, seed=5)(ids), make(name, seed=6)(ids))


def test_warm_ids_have_what_is_for_warm_ids():
    warmest = Request(split().train, "items", 40, DIM, ROWS, 0).warmest
    counts = split().train.item_counts[warmest.numpy()]
    assert (np.diff(counts) <= 0).all()
    adaptive, prehash = make("ae"), make("prehash4")
    assert adaptive.private(warmest).tolist() == [True] * 5 + [False] * 35
    assert prehash.own[warmest].tolist() == [*range(ROWS), *[ROWS] * 30]


def test_ids_of_the_log_that_a_table_has_no_room_for_are_not_counted():
    log = split().train
    for ids in (30, 40, 55):
        counts = Request(log, "items", ids, DIM, ROWS, 0).counts
        slow = [int((log.item == one).sum()) for one in range(ids)]
        assert counts.tolist() == slow


# Training.


@pytest.mark.parametrize(("model", "name"), [*NMF, *MF, ("nmf", TWO_LEVELS), ("mf", TWO_LEVELS)])
def test_a_method_trains_and_comes_to_the_same_with_the_same_seed(model, name):
    plan = plan_of(model, name)
    first = fitted(plan)
    assert_same(fit(split(), plan), first)
    losses = [record.train_loss for record in first.validation_records["choose"]]
    assert losses[-1] < losses[0]
    assert first.model.predict(log_with_unseen()).isfinite().all()
    if model == "nmf":
        for table in (first.model.users, first.model.items):
            assert table(torch.arange(-1, table.num_embeddings)).ge(0).all()


@pytest.mark.parametrize(("model", "name"), [*NMF, *MF, ("nmf", TWO_LEVELS), ("mf", TWO_LEVELS)])
def test_a_run_folder_predicts_as_what_was_saved(model, name, tmp_path):
    plan = plan_of(model, name)
    found = fitted(plan)
    learned = split().train_and_valid()
    save_run(
        tmp_path / "run", trained_run(learned, found.model, plan, found.validation_records, {}, {})
    )
    loaded = load_run(tmp_path / "run")
    for log in (split().test, log_with_unseen()):
        assert torch.equal(loaded.model.predict(log), found.model.predict(log))
    for side, table in found.model.whole_tables.items():
        assert loaded.model.whole_tables[side].memory() == table.memory()
        assert str(loaded.model.whole_tables[side]) == str(table)
    assert loaded.plan == plan


@pytest.mark.parametrize("name", METHODS)
def test_bytes_while_training_are_those_held_or_needed_to_prepare(name):
    plan = plan_of("nmf", name)
    table = make_model(split().train_and_valid(), plan).items
    held = max(table.memory(training=True).total, table.preparation_bytes)
    if plan.full_fit is not None:
        # The full fit: rows with biases, the last draw, its mean of four times as many columns.
        rows = table.num_embeddings + 1
        held = 4 * rows * 2 * (plan.full_fit.dim + 1) + 4 * rows * (1 + 4 * plan.full_fit.dim)
    assert fitted(plan).training_bytes["items"] == held
    assert held >= fitted(plan).model.items.memory().total


def test_biases_do_not_hide_what_a_table_was_prepared_with():
    held = [fitted(plan_of(model, "hashgnn")).training_bytes["items"] for model in ("nmf", "mf")]
    assert held[1] >= held[0]


def test_biases_do_not_hide_that_a_table_is_larger_than_was_asked_for():
    table = make("bh")
    assert table.overrun > 1
    assert BiasedEmbedding(table).overrun > 1


@pytest.mark.parametrize(
    ("name", "side"),
    [*((name, "both") for name in (*OTHERS, TWO_LEVELS)), ("cel", "users"), ("tt", "users")],
)
def test_users_can_be_compressed_as_well(name, side):
    model = fit(split(), plan_of("nmf", name, side=side)).model
    kinds = type(model.users) is FullEmbedding, type(model.items) is FullEmbedding
    assert kinds == (name == "full", name == "full" or side == "users")
    assert model.predict(log_with_unseen()).isfinite().all()


@pytest.mark.parametrize("name", METHODS)
def test_a_network_learns_with_the_table_too(name, tmp_path):
    plan = plan_of("deepfm", name, preset="default" if name == "cel-lite" else "scratch")
    found = fitted(plan)
    if name in ("modulo", "prehash4", "cafe", "jnkm"):
        assert_same(fit(split(), plan), found)
    # Rounds are of other interactions each, so that their losses cannot be compared.
    losses = [record.valid_loss for record in found.validation_records["choose"]]
    assert losses[-1] < losses[0]
    learned = split().train_and_valid()
    save_run(
        tmp_path / "run", trained_run(learned, found.model, plan, found.validation_records, {}, {})
    )
    loaded = load_run(tmp_path / "run")
    for log in (split().test, log_with_unseen()):
        assert torch.equal(loaded.model.predict(log), found.model.predict(log))


# Going on.


class Stopped(BaseException):
    """As final as a lost connection: nobody catches it."""


def fit_until(plan, path, validation_records):
    seen = 0

    def watch(_, __):
        nonlocal seen
        seen += 1
        if seen == validation_records:
            raise Stopped

    return fit(split(), plan, watch, Checkpoint(path, asdict(plan), resume=True, every=0.0))


@pytest.mark.parametrize(
    "plan",
    [
        *(plan_of("nmf", name) for name in ("ae", "bh", "cce", "hashgnn", "prehash4", *TREES[1:3])),
        plan_of("mf", "cafe"),
        plan_of("mf", "int8"),
        *(plan_of("deepfm", name, preset="scratch") for name in ("cafe", "prehash4", "etree")),
    ],
    ids=lambda plan: f"{plan.model} {plan.embedding} {plan.side}",
)
def test_training_that_is_stopped_at_every_second_judgement_comes_to_the_same(plan, tmp_path):
    for _ in range(30):
        try:
            found = fit_until(plan, tmp_path / "state", 2)
            break
        except Stopped:
            continue
    assert_same(found, fitted(plan))


# Mistakes.


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"embedding": "hash"}, "embedding must be one of cel, .*, not 'hash'"),
        ({"embedding": "jnkm", "model": "mf"}, "'jnkm' knows no biases; take model 'nmf'"),
        ({"embedding": "etree", "side": "both"}, "'etree' is for side 'items', not 'both'"),
        ({"embedding": "bh", "compression": "auto"}, "'auto' needs embedding 'cel', not 'bh'"),
        ({"embedding": "qr", "start": "random:2"}, "start is for embedding 'cel', not 'qr'"),
        ({"embedding": "ae", "frozen": True}, "frozen is for embedding 'cel', not 'ae'"),
        ({"embedding": "cafe", "personalise": "all"}, "personalise is for embedding 'cel'"),
    ],
)
def test_plans_that_no_method_can_follow_are_told_in_one_line(options, told):
    with pytest.raises(CelrecError, match=told) as error:
        Plan(**options)
    assert "\n" not in str(error.value)


def test_ids_that_are_strings_have_no_bits_to_take():
    frame = split().train.to_frame().with_columns(item=pl.format("item {}", "item"))
    with pytest.raises(CelrecError, match="takes the bits of integer ids, and these") as error:
        make_model(read(frame), plan_of("nmf", "bh-ids"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["hashgnn", "bh-ids"])
def test_further_columns_are_not_for_methods_that_look_at_users_and_items(name):
    frame = split().train.to_frame()
    frame = frame.with_columns(shop=pl.col("item") % 7)
    log = read(frame, columns=["shop"])
    with pytest.raises(CelrecError, match=f"'{name}' is for users and items, not .*'shop'"):
        make_model(log, plan_of("deepfm", name, preset="scratch"))


@pytest.mark.parametrize("name", ["cel", *OF_BUDGETS])
def test_tables_within_a_budget_come_back_from_run_folders(name, tmp_path):
    plan = Plan(name, model="mf", rank=DIM, budget="20B/id")
    fitted = fit(split(), plan)
    ids = split().train.num_users + split().train.num_items
    size = sum(table.memory().total for table in fitted.model.whole_tables.values())
    assert size <= 20 * ids
    assert f"{20 * ids:,} bytes" in (fitted.growth or "")
    learned = split().train_and_valid()
    records = fitted.validation_records
    save_run(tmp_path / "run", trained_run(learned, fitted.model, plan, records, {}, {}))
    loaded = load_run(tmp_path / "run").model
    assert torch.equal(loaded.predict(split().test), fitted.model.predict(split().test))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": "rq"}, "budget is missing: tables of 'rq'"),
        ({"embedding": "modulo", "budget": "2B/id"}, "budget is for embeddings cel, "),
        ({"model": "nmf", "budget": "2B/id"}, "budget is for model 'mf', not 'nmf'"),
        ({"budget": "2 apples"}, "budget must be bytes such as 50kB or 2B/id, not '2 apples'"),
        ({"budget": "2B/id", "levels": 2}, "budget chooses the levels"),
        ({"budget": "2B/id", "negatives": 2}, "budget needs a full fit"),
    ],
)
def test_budgets_that_cannot_be_are_told(options, message):
    with pytest.raises(CelrecError, match=message):
        Plan(**{"embedding": "cel", "model": "mf", **options})
