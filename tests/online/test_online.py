"""Settings of online training, plans that ask for it, and what it learns from a stream."""

from dataclasses import asdict, replace
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch

from celrec import CelrecError, Plan, Planted, Split, fit, read
from celrec.config.building import make_model
from celrec.config.online import OnlineClusterConfig, OnlineConfig, RowDescentConfig
from celrec.config.presets import ONLINE, PRESETS
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.evaluation.cluster_diagnostics import adjusted_rand_index
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.models.interaction import LOSSES
from celrec.offline.checkpoint import Checkpoint
from celrec.online.hard_clusters import HardClusterTrainer
from celrec.online.make_trainer import initialise_tables, make_trainer
from celrec.online.mixtures import MixtureTrainer
from celrec.online.plain_tables import ComposedTableTrainer, RowTableTrainer
from celrec.recommender.batch import Batch, FeatureTables
from celrec.recommender.model import Model
from celrec.runs.run_folder import load_run, save_run, trained_run

DIM = 4


def recommender(users, items, model=None, loss="squared-error"):
    nothing = FeatureTables([], users.embedding_dim)
    return Model(users, items, model or DotProduct(), nothing, nothing, loss=LOSSES[loss])


# Settings.


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"assignment": "fuzzy"}, "assignment must be one of soft, hard, not 'fuzzy'"),
        ({"replay": True}, "replay needs assignment 'hard'"),
        ({"batch": 0}, "batch must be positive, not 0"),
        ({"temperature": 0.0}, "temperature must be positive, not 0.0"),
        ({"temperature": float("nan")}, "temperature must be positive, not nan"),
        ({"most_rows": -1}, "most_rows must be positive, not -1"),
        ({"network_rate": -1e-3}, "network_rate must be positive, not -0.001"),
        ({"spread": 0.0}, "spread must be positive, not 0.0"),
    ],
)
def test_wrong_settings_are_told(wrong, told):
    with pytest.raises(CelrecError, match=told):
        OnlineConfig(**wrong)


@pytest.mark.parametrize(
    ("table", "side"),
    [
        (PosteriorEmbedding(9, DIM, rows=3), MixtureTrainer),
        (ClusteredEmbedding(9, DIM, max_clusters=3), HardClusterTrainer),
        (FullEmbedding(9, DIM), RowTableTrainer),
        (ModuloEmbedding(9, DIM, rows=3), RowTableTrainer),
        (PreHashEmbedding(9, DIM, rows=3), ComposedTableTrainer),
        (CafeEmbedding(9, DIM, rows=9), ComposedTableTrainer),  # it wants to see its gradients
    ],
)
def test_every_table_is_learned_in_its_own_way(table, side):
    trainer = make_trainer(OnlineConfig(), recommender(table, FullEmbedding(5, DIM)))
    assert type(trainer.sides["users"]) is side
    assert type(trainer.sides["items"]) is RowTableTrainer


@pytest.mark.parametrize(("loss", "bytes_each"), [("cross-entropy", 1), ("squared-error", 4)])
def test_hard_clusters_keep_conversions_as_bytes_and_ratings_as_they_are(loss, bytes_each):
    tables = [ClusteredEmbedding(9, DIM, max_clusters=3) for _ in range(2)]
    trainer = make_trainer(
        OnlineConfig(assignment="hard", moving=OnlineClusterConfig(latest=5)),
        recommender(*tables, loss=loss),
    )
    for side in trainer.sides.values():
        assert side.buffer.nbytes == 9 * (8 + 5 * (4 + bytes_each))


def test_penalties_and_rates_can_be_multiplied():
    how = OnlineConfig(
        shared=RowDescentConfig(l2=0.5), plain=RowDescentConfig(learning_rate=0.2, l2=0.1)
    )
    stronger, faster = how.stronger(3.0), how.faster(2.0)
    assert (stronger.shared.l2, stronger.plain.l2) == pytest.approx((1.5, 0.3))
    assert stronger.shared.learning_rate == how.shared.learning_rate
    assert (faster.shared.learning_rate, faster.plain.learning_rate) == pytest.approx((0.2, 0.4))
    assert faster.network_rate == pytest.approx(2e-3)
    assert (faster.shared.l2, faster.plain.l2) == (0.5, 0.1)


def test_nothing_can_be_replayed_where_no_events_are_kept():
    model = recommender(FullEmbedding(5, DIM), FullEmbedding(5, DIM))
    trainer = make_trainer(OnlineConfig(assignment="hard", replay=True), model)
    ids = torch.tensor([1, 2])
    for _ in range(2):
        assert trainer.step(Batch(ids, ids, torch.ones(2))).shape == (2,)


# Beginnings.


def test_rows_begin_as_far_apart_as_is_said():
    users = PosteriorEmbedding(3000, DIM + 1, rows=3000)
    items = ModuloEmbedding(3000, DIM + 1, rows=3000)
    how = OnlineConfig(spread=0.7, scalars=0.2, small=0.01, seed=5)
    model = recommender(users, items, BiasedDotProduct())
    initialise_tables(how, model, 3.25)
    assert users.weight[:, :DIM].std().item() == pytest.approx(0.7, rel=0.05)
    assert users.weight[:, DIM].std().item() == pytest.approx(0.2, rel=0.05)
    assert items.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert model.model.mean.item() == 3.25
    first = users.weight.detach().clone()
    initialise_tables(how, model, 3.25)
    assert torch.equal(users.weight, first)
    initialise_tables(replace(how, seed=6), model, 3.25)
    assert not torch.equal(users.weight, first)


@pytest.mark.parametrize("kind", ["soft", "hard", "full"])
@pytest.mark.parametrize("mean", [0.4, 3.6, 50.0])
def test_a_non_negative_factorisation_begins_about_the_mean(kind, mean):
    table = {
        "soft": lambda: PosteriorEmbedding(500, DIM, rows=400),
        "hard": lambda: ClusteredEmbedding(500, DIM, max_clusters=400),
        "full": lambda: FullEmbedding(500, DIM),
    }[kind]
    model = recommender(table(), FullEmbedding(500, DIM))
    initialise_tables(
        OnlineConfig(plain=RowDescentConfig(non_negative=True), spread=0.1), model, mean
    )
    rows = [one.weight.detach() for one in model.whole_tables.values()]
    assert all(bool((one >= 0).all()) for one in rows)
    outputs = rows[0][:400] @ rows[1][:400].T
    assert outputs.mean().item() == pytest.approx(mean, rel=0.05)


def test_targets_below_zero_are_no_reason_to_break():
    model = recommender(FullEmbedding(5, DIM), FullEmbedding(5, DIM))
    initialise_tables(OnlineConfig(plain=RowDescentConfig(non_negative=True)), model, -2.0)
    assert all(bool(one.weight.isfinite().all()) for one in model.whole_tables.values())


def test_mixtures_that_know_best_keep_what_they_begin_with():
    table = PreHashEmbedding(9, DIM, rows=3)
    before = table.weight.detach().clone()
    initialise_tables(OnlineConfig(), recommender(table, FullEmbedding(5, DIM)), 1.0)
    assert torch.equal(table.weight, before)


# Plans.

PLANTED = Planted(rows=2500, users=30, items=40, dim=3, item_clusters=4, noise=0.3)


@pytest.fixture
def quick(monkeypatch):
    """Fewer passes."""
    for presets in ONLINE.values():
        for name, how in presets.items():
            steps = min(how.schedule.steps, 6)
            schedule = replace(how.schedule, steps=steps, validate_every=1, patience=3)
            solver = replace(how.solver, batch=min(how.solver.batch, 250))
            monkeypatch.setitem(presets, name, replace(how, schedule=schedule, solver=solver))


@cache
def split():
    return Split.random(PLANTED.interactions())


def log_with_unseen():
    log = split().test
    user, item = log.user.copy(), log.item.copy()
    user[::3], item[::4] = -1, -1
    return replace(log, user=user, item=item)


CASES = [
    ("cel-lite", "nmf", "default"),
    ("cel-lite", "nmf", "paper"),
    ("cel-lite", "mf", "default"),
    ("cel-lite", "mf", "hard"),
    ("cel-lite", "mf", "paper"),
    ("cel-lite", "deepfm", "default"),
    ("cel-lite", "deepfm", "paper"),
    ("cel-lite", "din", "default"),
    ("modulo", "nmf", "online"),
    ("modulo", "mf", "online"),
    ("full", "deepfm", "online"),
    ("bh", "nmf", "online"),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("embedding", "model", "preset"), CASES)
def test_a_plan_is_learned_online_and_kept_in_a_run_folder(embedding, model, preset, tmp_path):
    plan = Plan(embedding, "8", model=model, preset=preset, rank=DIM)
    assert plan.online
    found = fit(split(), plan)
    error = np.mean((found.model.predict(split().test).numpy() - split().test.target) ** 2)
    untrained = make_model(split().train, plan)
    untrained.remember(split().train)
    initialise_tables(plan.settings().solver, untrained, float(split().train.target.mean()))
    first = np.mean((untrained.predict(split().test).numpy() - split().test.target) ** 2)
    assert error < first
    assert found.model.predict(log_with_unseen()).isfinite().all()
    if model == "nmf":
        for table in found.model.whole_tables.values():
            assert table(torch.arange(-1, table.num_embeddings)).ge(0).all()
    learned = split().train_and_valid()
    save_run(
        tmp_path / "run", trained_run(learned, found.model, plan, found.validation_records, {}, {})
    )
    loaded = load_run(tmp_path / "run")
    assert loaded.plan == plan
    for log in (split().test, log_with_unseen()):
        assert torch.equal(loaded.model.predict(log), found.model.predict(log))


class Stopped(BaseException):
    """As final as a lost connection."""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("embedding", "model", "preset"),
    [("cel-lite", "mf", "default"), ("cel-lite", "nmf", "paper"), ("bh", "mf", "online")],
)
def test_training_that_is_stopped_at_every_second_judgement_comes_to_the_same(
    embedding, model, preset, tmp_path
):
    plan = Plan(embedding, "8", "both", model=model, preset=preset, rank=DIM, seed=3)
    expected = fit(split(), plan)

    def fit_until_the_second():
        seen = []

        def watch(_, record):
            seen.append(record)
            if len(seen) == 2:  # the first was saved
                raise Stopped

        checkpoint = Checkpoint(tmp_path / "state", asdict(plan), resume=True, every=0.0)
        return fit(split(), plan, watch, checkpoint)

    stops = 0
    while True:
        try:
            found = fit_until_the_second()
            break
        except Stopped:
            stops += 1
            assert stops < 30
    assert stops > 1
    assert repr(found.validation_records) == repr(expected.validation_records)
    first, second = expected.model.state_dict(), found.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_there_are_presets_for_every_model():
    assert set(ONLINE) == set(PRESETS)
    for model, presets in ONLINE.items():
        assert next(iter(presets)) == "default"
        assert len({repr(how) for how in presets.values()}) == len(presets)
        positive = 4.0 if model == "mmoe" else None
        for name, how in presets.items():
            plan = Plan("cel-lite", model=model, preset=name, positive=positive, seed=7)
            solver = plan.settings().solver
            assert solver.assignment == ("soft" if name == "default" else "hard")
            assert plan.settings() == replace(how, seed=7)
        plain = Plan("modulo", model=model, preset="online", positive=positive)
        assert plain.settings() == presets["default"]


def test_the_preset_paper_is_what_the_paper_says():
    how = ONLINE["mf"]["paper"]
    assert (how.rank, how.solver.batch, how.schedule.steps) == (8, 256, 1)
    moving = how.solver.moving
    assert (moving.latest, moving.candidates, moving.limit) == (20, 50, 100)
    assert (moving.schedule, moving.prior, moving.own_row_above) == ("always", 0.0, 100)
    for rows in (how.solver.shared, how.solver.plain):
        assert rows == RowDescentConfig(rule="sgd", learning_rate=0.05, average=True)
    assert how.solver.replay
    ratings = ONLINE["nmf"]["paper"]
    assert (ratings.rank, ratings.solver.batch) == (64, 2000)
    assert (ratings.solver.moving.latest, ratings.solver.moving.candidates) == (20, 10)
    assert ratings.solver.plain.non_negative


@pytest.mark.parametrize("model", ["mf", "deepfm"])
def test_a_plan_makes_the_tables_of_its_assignment(model):
    log = split().train
    soft = make_model(log, Plan("cel-lite", "6", "both", model=model))
    hard = make_model(log, Plan("cel-lite", "6", "users", model=model, preset="hard"))
    assert type(soft.users) is type(soft.items) is PosteriorEmbedding
    assert (soft.users.max_rows, soft.users.num_rows) == (6, 6)
    assert (type(hard.users), type(hard.items)) == (ClusteredEmbedding, FullEmbedding)
    assert (hard.users.max_clusters, hard.users.num_clusters) == (6, 1)
    many = make_model(log, Plan("cel-lite", "100%", model=model))
    assert many.items.max_rows == min(32, log.num_items)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"preset": "released"}, "preset must be one of default, paper, not 'released'"),
        ({"model": "mf", "preset": "descent"}, "preset must be one of default, hard, paper"),
        ({"preset": "online"}, "preset must be one of default, paper, not 'online'"),
        ({"model": "deepfm", "preset": "scratch"}, "preset must be one of default, hard, paper"),
        ({"loss": "cross-entropy"}, "loss must be one of squared-error, not 'cross-entropy'"),
        ({"model": "deepfm", "loss": "ranking"}, "loss must be one of squared-error, cross-entr"),
        ({"compression": "auto"}, "'auto' needs embedding 'cel', not 'cel-lite'"),
        ({"start": "random:3"}, "start is for embedding 'cel', not 'cel-lite'"),
        ({"frozen": True}, "frozen is for embedding 'cel', not 'cel-lite'"),
        ({"embedding": "etree", "preset": "online"}, "'etree' is not learned online"),
        (
            {"embedding": "jnkm-leaves", "preset": "online"},
            "is not learned online; take 'cel-lite'",
        ),
        ({"embedding": "cel", "preset": "online"}, "'cel' is not learned online"),
        ({"model": "mmoe"}, "positive is missing"),
    ],
)
def test_plans_that_cannot_be_followed_are_told_in_one_line(options, told):
    with pytest.raises(CelrecError, match=told) as error:
        Plan(**{"embedding": "cel-lite", **options})
    assert "\n" not in str(error.value)


def test_further_columns_are_learned_online_too():
    frame = split().train.to_frame().with_columns(shop=pl.col("item") % 7)
    frame = frame.with_columns(
        shop=pl.when(pl.int_range(pl.len()) % 5 > 0).then(pl.col("shop"))  # some have none
    )
    log = read(frame, columns=["shop"])
    plan = Plan("cel-lite", "4", model="deepfm", rank=DIM)
    found = fit(Split.random(log), plan)
    assert isinstance(found.model.whole_tables["shop"], PosteriorEmbedding)
    assert found.model.predict(log).isfinite().all()


# A planted stream of conversions.

USERS, ITEMS, CLUSTERS, EVENTS, ROWS = 600, 200, 4, 40_000, 8


@cache
def conversions():
    """Users, items, targets, the clusters of both, and the loss of the truth.

    Half of the ids are there from the beginning, the others come one after the other.
    """
    rng = np.random.default_rng(0)
    clusters = [rng.integers(CLUSTERS, size=size) for size in (USERS, ITEMS)]
    rows = [1.4 * rng.normal(size=(CLUSTERS, DIM)) for _ in range(2)]
    there = 0.5 + 0.5 * np.minimum(np.arange(EVENTS) / EVENTS / 0.8, 1)
    ids = [(rng.random(EVENTS) * (there * size)).astype(np.int64) for size in (USERS, ITEMS)]
    logits = (rows[0][clusters[0][ids[0]]] * rows[1][clusters[1][ids[1]]]).sum(1)
    share = 1 / (1 + np.exp(-logits))
    target = (rng.random(EVENTS) < share).astype(np.float32)
    best = -(target * np.log(share) + (1 - target) * np.log(1 - share))
    return ids, target, clusters, best


def learned(make, how):
    """The model after one pass, and the loss of each event just before it was learned."""
    torch.manual_seed(0)
    ids, target, _, _ = conversions()
    model = recommender(
        make(USERS // 2), make(ITEMS // 2), BiasedDotProduct(), loss="cross-entropy"
    )
    initialise_tables(how, model, float(target.mean()))
    trainer = make_trainer(how, model)
    for side in trainer.sides.values():
        side.begin()
    columns = [torch.from_numpy(one).split(how.batch) for one in (*ids, target)]
    outputs = torch.cat([trainer.step(Batch(*part)) for part in zip(*columns, strict=True)])
    return model, model.loss.of_samples(outputs, torch.from_numpy(target)).numpy()


def soft_rows(ids):
    return PosteriorEmbedding(ids, DIM + 1, rows=ROWS)


def modulo_rows(ids):
    return ModuloEmbedding(ids, DIM + 1, rows=ROWS)


def late(losses):
    return losses[EVENTS // 2 :].mean()


@pytest.mark.parametrize("seed", [0, 1])
def test_mixtures_learn_a_stream_far_better_than_rows_shared_by_chance(seed):
    how = OnlineConfig(seed=seed)
    _, soft = learned(soft_rows, how)
    _, by_chance = learned(modulo_rows, how)
    best = conversions()[-1]
    assert late(by_chance) - late(best) > 0.25
    assert late(soft) - late(best) < 0.06


def test_ids_that_come_late_are_known_after_a_few_events():
    model, losses = learned(soft_rows, OnlineConfig())
    ids, _, _, best = conversions()
    seen, number = np.zeros(USERS, int), np.empty(EVENTS, int)
    for event, user in enumerate(ids[0]):
        number[event] = seen[user]
        seen[user] += 1
    newcomer = (ids[0] >= USERS // 2) & (ids[1] < ITEMS // 2) & (np.arange(EVENTS) > EVENTS // 2)
    behind = [
        (losses - best)[newcomer & (number >= low) & (number < high)].mean()
        for low, high in ((0, 1), (3, 6), (10, 30))
    ]
    assert behind[0] > behind[1] > behind[2]
    assert behind[0] < 0.693
    assert behind[2] < 0.1
    assert model.users.num_embeddings >= USERS


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_planted_clusters_are_found(seed):
    model, _ = learned(soft_rows, OnlineConfig(seed=seed))
    ids, _, clusters, _ = conversions()
    for table, events, truth in zip((model.users, model.items), ids, clusters, strict=True):
        warm = np.bincount(events, minlength=len(truth)) >= 50
        nearest = table.nearest(torch.arange(len(truth))).numpy()[warm]
        assert adjusted_rand_index(nearest, truth[warm]) > 0.5  # of 8 rows for 4 clusters
        pure = sum(
            np.bincount(truth[warm][nearest == row], minlength=CLUSTERS).max()
            for row in range(ROWS)
        )
        assert pure / warm.sum() > 0.95


def test_hard_clusters_learn_the_stream_too():
    moving = OnlineClusterConfig(candidates=8, prior=2.0, limit=300.0)
    how = OnlineConfig(assignment="hard", shared=RowDescentConfig(), moving=moving)
    model, hard = learned(lambda ids: ClusteredEmbedding(ids, DIM + 1, max_clusters=16), how)
    _, by_chance = learned(modulo_rows, how)
    assert late(hard) < late(by_chance) - 0.03
    assert model.users.num_clusters > 8
