from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import celrec
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.offline.fitting import take_over
from celrec.offline.training import OfflineTraining
from celrec.recommender.model import Model

MODELS = {"din": 5, "dien": 5, "deepfm": 5, "neumf": 11}
"""Networks that can begin as a dot product, and the length of their rows here."""


@pytest.fixture(scope="module")
def log():
    log = celrec.Planted(rows=400, users=20, items=25, dim=2, item_clusters=3).interactions()
    table = log.to_frame().with_columns(
        shop=pl.Series(np.arange(400) * 7 % 6), word=pl.Series(np.arange(400) % 9)
    )
    return celrec.read(
        table,
        columns=["shop", "word"],
        user_features=pl.DataFrame({"user": range(20), "city": [n % 3 for n in range(20)]}),
        item_features=pl.DataFrame({"item": range(25), "genres": [["a", "b"], ["c"]] * 12 + [[]]}),
    )


def table(kind, ids, dim):
    shared = ClusteredEmbedding(ids, dim, max_clusters=6)
    shared.start_from(torch.arange(ids) % 4)
    shared.split(2, torch.tensor([2]))
    shared.unseen_cluster = 3
    if kind == "full":
        return FullEmbedding(ids, dim)
    if kind == "modulo":
        return ModuloEmbedding(ids, dim, rows=4, seed=3)
    if kind == "mixed":
        return MixedEmbedding.personalise(shared, torch.arange(ids) % 3 == 0)
    return shared


def learned(log, kinds, dim):
    torch.manual_seed(1)
    made = Model(table(kinds[0], log.num_users, dim), table(kinds[1], log.num_items, dim))
    with torch.no_grad():
        for rows in (made.users, made.items):
            rows.weight.abs_()
    return made


def with_unseen(log):
    user, item = log.user.copy(), log.item.copy()
    user[::3], item[::4] = -1, -1
    return replace(log, user=user, item=item)


def network(log, plan):
    made = make_model(log, plan)
    made.remember(log)
    return made


@pytest.mark.parametrize(
    "kinds",
    [
        ("full", "clustered"),
        ("clustered", "full"),
        ("clustered", "clustered"),
        ("full", "modulo"),
        ("modulo", "modulo"),
        ("full", "mixed"),
        ("mixed", "mixed"),
        ("full", "full"),
    ],
    ids=" and ".join,
)
@pytest.mark.parametrize("model", MODELS)
def test_the_first_predictions_are_those_of_the_factorisation(log, model, kinds):
    plan = Plan(rank=MODELS[model], model=model)
    made = network(log, plan)
    before = learned(log, kinds, plan.pretraining.dim)
    take_over(made, before, {}, seed=0)
    for rows in (log, with_unseen(log)):
        torch.testing.assert_close(made.predict(rows), before.predict(rows), rtol=1e-4, atol=1e-4)
    for one, two in ((made.users, before.users), (made.items, before.items)):
        assert type(one) is type(two)
        ids = torch.arange(-1, one.num_embeddings + 2)
        assert torch.equal(one.row_of(ids), two.row_of(ids))
        assert one.num_rows == two.num_rows
        if isinstance(one, ClusteredEmbedding):
            assert torch.equal(one.assignment, two.assignment)
            assert torch.equal(one.parent, two.parent)
            assert (one.num_clusters, one.max_clusters) == (5, 6)
        if isinstance(one, MixedEmbedding):
            assert one.private_rows == two.private_rows > 0


@pytest.mark.parametrize("model", MODELS)
def test_all_that_the_factorisation_did_not_know_is_small_or_zero(log, model):
    plan = Plan(rank=MODELS[model], model=model)
    made, dims = network(log, plan), plan.pretraining.dim
    before = learned(log, ("full", "clustered"), dims)
    take_over(made, before, {}, seed=0)
    for name in ("users", "items"):
        rows, old = made.tables[name].weight.detach(), before.tables[name].weight.detach()
        assert torch.equal(rows[:, :dims], old)
        more = rows[:, dims : plan.dim]
        assert more.numel() == 0 or 0.03 < float(more.std()) < 0.07
        assert not rows[:, plan.dim :].any()
    assert len(made.user_features) == len(made.item_features) == 1
    for features in (made.user_features, made.item_features):
        assert not any(values.any() for values in features.tables)
    for name in ("shop", "word"):
        assert not made.tables[name].weight.any()
    assert made.column_names == ("shop", "word")


def test_the_factorisation_stays_as_it_is_and_the_seed_decides(log):
    plan = Plan(rank=11, model="neumf")
    before = learned(log, ("full", "mixed"), 8)
    kept = {name: value.clone() for name, value in before.state_dict().items()}
    one, same, other = (network(log, plan) for _ in range(3))
    for made, seed in ((one, 0), (same, 0), (other, 1)):
        take_over(made, before, {}, seed)
    assert torch.equal(one.users.weight, same.users.weight)
    assert not torch.equal(one.users.weight, other.users.weight)
    with torch.no_grad():
        for value in [*one.parameters(), *one.buffers()]:
            value.zero_()
    assert all(torch.equal(before.state_dict()[name], kept[name]) for name in kept)


@pytest.mark.parametrize("model", MODELS)
def test_it_can_learn_from_there(log, model):
    """Nothing is so much at rest that no gradient reaches it, later if not at once."""
    plan = Plan(rank=MODELS[model], model=model)
    made = network(log, plan)
    take_over(made, learned(log, ("full", "clustered"), plan.pretraining.dim), {}, seed=0)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        made.objective(made.batch(log, slice(None), own=True)).mean().backward()
        optimizer.step()
    still = {name for name, p in made.named_parameters() if torch.equal(before[name], p)}
    # Nothing but the auxiliary network of DIEN, which has a loss of its own.
    assert {name.split(".")[1] for name in still} <= {"next_item"}


def test_clusters_and_what_was_learned_stay_while_all_else_is_trained(log):
    plan = Plan(model="neumf", rank=11, compression="4", preset="scratch")
    made, base = network(log, plan), learned(log, ("full", "clustered"), 8)
    take_over(made, base, {}, seed=0)
    how = plan.settings()
    how = replace(how, schedule=replace(how.schedule, steps=12, validate_every=12))
    training = OfflineTraining(made, log, log[:0], how)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    training.run()
    assert torch.equal(made.items.assignment, before["items.assignment"])
    for side in ("users", "items"):
        now, then = made.tables[side].weight, before[f"{side}.weight"]
        used = torch.unique(made.tables[side].row_of(torch.arange(20)))
        assert torch.equal(now[used, :8], then[used, :8])
        assert not torch.equal(now[used, 8:], then[used, 8:])
    assert made.tables["shop"].num_clusters > 1  # further columns are clustered all the same


def test_uncertain_rows_are_drawn_in_training_only(log):
    made, base = network(log, Plan(model="neumf", rank=11)), learned(log, ("full", "full"), 8)
    spread = torch.randn(log.num_users + 1, 8, 8)
    take_over(made, base, {"users": spread}, seed=0)
    ids = torch.full((20_000,), 3)
    assert torch.equal(made.eval().vectors("users", made.users, ids), made.users(ids))
    generator = torch.Generator().manual_seed(0)
    made.train().draw_normal = lambda shape: torch.randn(shape, generator=generator)
    drawn = made.vectors("users", made.users, ids).detach() - made.users.weight[3].detach()
    assert torch.equal(drawn[:, 8:], torch.zeros_like(drawn[:, 8:]))
    expected = spread[3] @ spread[3].T
    assert float((drawn[:, :8].T.cov() - expected).abs().max()) < 0.05 * float(expected.trace())
    assert float(drawn.mean(0).abs().max()) < 0.1
    assert torch.equal(made.vectors("items", made.items, ids % 25), made.items(ids % 25))
