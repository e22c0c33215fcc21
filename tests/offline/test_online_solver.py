import copy
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import celrec
from celrec import CelrecError
from celrec.config.offline import OfflineConfig, Schedule
from celrec.config.online import OnlineClusterConfig, OnlineConfig, RowDescentConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.models.din import DIN
from celrec.models.dot_product import BiasedDotProduct
from celrec.models.interaction import LOSSES
from celrec.offline.online_solver import OnlineDescent
from celrec.offline.training import OfflineTraining
from celrec.recommender.batch import FeatureTables
from celrec.recommender.model import Model

ROWS, USERS, ITEMS, DIM = 150, 12, 15, 3
HARD = {
    "assignment": "hard",
    "shared": RowDescentConfig(),
    "moving": OnlineClusterConfig(latest=5, candidates=3, limit=15.0),
}


def make_log(*, timed=True):
    log = celrec.Planted(ROWS, USERS, ITEMS, dim=2, item_clusters=3).interactions()
    backwards = log.timestamp[::-1].copy() if timed else None  # not in the order of the log
    return replace(log, timestamp=backwards)


def make_model(log, kind="soft", model=BiasedDotProduct):
    torch.manual_seed(0)
    network = model() if model is BiasedDotProduct else model(DIM)
    width = DIM + network.extra_columns
    tables = {
        "soft": lambda ids: PosteriorEmbedding(ids, width, rows=4),
        "hard": lambda ids: ClusteredEmbedding(ids, width, max_clusters=4),
        "plain": lambda ids: FullEmbedding(ids, width),
    }
    make, nothing = tables[kind], FeatureTables([], width)
    history = 3 if network.uses_history else 0
    users, items = make(log.num_users), make(log.num_items)
    return Model(users, items, network, nothing, nothing, history_length=history)


def make_solver(log, kind="soft", model=BiasedDotProduct, **how):
    how = {"batch": 16, **(HARD if kind == "hard" else {}), **how}
    solver = OnlineDescent(make_model(log, kind, model), log, OnlineConfig(**how))
    solver.start(0)
    return solver


def spied(solver, monkeypatch):
    seen = []
    plain_step = solver.trainer.step

    def step(batch, *, again=False):
        seen.append((batch, again))
        return plain_step(batch, again=again)

    monkeypatch.setattr(solver.trainer, "step", step)
    return seen


def events(seen):
    return [
        event
        for batch, _ in seen
        for event in zip(*(one.tolist() for one in batch[:3]), strict=True)
    ]


def test_the_first_pass_is_in_the_order_of_time_and_later_ones_are_mixed(monkeypatch):
    log = make_log()
    solver = make_solver(log)
    seen = spied(solver, monkeypatch)
    order = sorted(range(ROWS), key=lambda row: (log.timestamp[row], row))
    all_events = list(zip(log.user.tolist(), log.item.tolist(), log.target.tolist(), strict=True))
    passes = []
    for number in range(3):
        seen.clear()
        solver.step()
        assert [len(batch.user) for batch, _ in seen] == [16] * 9 + [6]
        assert {again for _, again in seen} == {number > 0}
        passes.append(events(seen))
        assert sorted(passes[-1]) == sorted(all_events)
    assert passes[0] == [all_events[row] for row in order]
    assert len({tuple(one) for one in passes}) == 3


def test_without_times_the_seed_decides_the_order(monkeypatch):
    log, found = make_log(timed=False), []
    for seed in (1, 1, 2):
        solver = make_solver(log, seed=seed)
        seen = spied(solver, monkeypatch)
        solver.step()
        found.append(events(seen))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("kind", ["soft", "hard", "plain"])
def test_a_step_tells_the_loss_of_each_event_before_it_was_learned(kind):
    log = make_log()
    solver, slow = make_solver(log, kind), make_solver(log, kind)
    for number in range(2):
        total = 0.0
        order = torch.from_numpy(slow.order())
        for rows in torch.split(order, 16):
            batch = slow.model.batch(log, rows, own=True)
            outputs = slow.trainer.step(batch, again=number > 0)
            total += float((outputs - batch.target).square().sum())
        slow.passes += 1
        assert solver.step() == pytest.approx(total)


@pytest.mark.parametrize(
    ("kind", "model"),
    [("soft", BiasedDotProduct), ("hard", BiasedDotProduct), ("soft", DIN), ("hard", DIN)],
)
def test_passes_lower_the_loss_and_count_nothing_twice(kind, model):
    log = make_log()
    # The ratings are far apart: what one tells is not to decide it all.
    solver = make_solver(log, kind, model, temperature=60.0, network_rate=0.01)
    losses = [solver.step() for _ in range(6)]
    assert losses[-1] < (1 if model is DIN else 0.5) * losses[0]
    assert solver.trainer.sides["users"].counts.tolist() == log.user_counts.tolist()
    assert solver.trainer.sides["items"].counts.tolist() == log.item_counts.tolist()
    if kind == "hard":
        assert solver.trainer.sides["users"].members.events.sum() == ROWS


def test_models_with_a_history_see_that_of_the_log(monkeypatch):
    log = make_log()
    solver = make_solver(log, "soft", DIN)
    seen = spied(solver, monkeypatch)
    for _ in range(2):
        solver.step()
    for batch, _ in seen:
        for user, item, target, history in zip(*(one.tolist() for one in batch[:4]), strict=True):
            own = np.flatnonzero((log.user == user) & (log.item == item) & (log.target == target))
            possible = []
            for row in own:
                before = sorted(
                    (log.timestamp[other], other)
                    for other in np.flatnonzero(log.user == user)
                    if log.timestamp[other] < log.timestamp[row]
                )
                items = [int(log.item[other]) for _, other in before][-3:]
                possible.append([-1] * (3 - len(items)) + items)
            assert history in possible


def flat(value, name=""):
    if isinstance(value, dict):
        return {
            k: v for key, inner in value.items() for k, v in flat(inner, f"{name}.{key}").items()
        }
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value}


def everything(solver):
    return flat({"solver": solver.state_dict(), "model": dict(solver.model.state_dict())})


@pytest.mark.parametrize("kind", ["soft", "hard", "plain"])
def test_what_is_judged_is_as_after_a_sweep_and_then_all_is_as_before(kind, monkeypatch):
    log = make_log()
    solver = make_solver(log, kind)
    for _ in range(2):
        solver.step()
    swept = []
    plain_sweep = solver.trainer.sweep
    monkeypatch.setattr(solver.trainer, "sweep", lambda: (swept.append(1), plain_sweep())[1])
    before = everything(solver)
    with solver.averaged():
        assert swept == [1]
        within = everything(solver)
    assert everything(solver) == before
    changed = {name for name in before if before[name] != within[name]}
    if kind == "hard":
        assert changed
    moving = ("assignment", "members", "moved", "evidence")
    assert all(any(one in name for one in moving) for name in changed)
    other = make_solver(log, kind)
    for one in (other, solver):
        steps = 3 if one is other else 1
        for _ in range(steps):
            one.step()
    assert everything(other) == everything(solver)


@pytest.mark.parametrize("kind", ["soft", "hard", "plain"])
def test_a_state_after_any_pass_goes_on_as_if_nothing_had_happened(kind):
    log = make_log()
    whole = make_solver(log, kind)
    losses = [whole.step() for _ in range(4)]
    for stop in (1, 2, 3):
        first, second = make_solver(log, kind), make_solver(log, kind)
        for _ in range(stop):
            first.step()
        second.model.load_state_dict(copy.deepcopy(first.model.state_dict()))
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        assert [second.step() for _ in range(stop, 4)] == losses[stop:]
        assert everything(second) == everything(whole)


def test_validation_data_choose_the_number_of_passes_and_what_is_left():
    split = celrec.Split.random(make_log())
    how = OfflineConfig(
        solver=OnlineConfig(batch=16),
        schedule=Schedule(steps=5, split_every=0, reassign_every=0, validate_every=1, patience=2),
    )
    training = OfflineTraining(make_model(split.train), split.train, split.valid, how)
    training.start()
    validation_records = training.run()
    best = training.best
    assert best.valid_loss == min(one.valid_loss for one in validation_records)
    assert training.solver.loss(split.valid) == pytest.approx(best.valid_loss)
    assert training.solver.passes == best.step
    assert len(validation_records) in (best.step + 2, 5)


def test_the_loss_is_a_mean_over_data_from_outside():
    log = make_log()
    solver = make_solver(log)
    outside = celrec.read(
        pl.DataFrame({"user": [999, 0], "item": [1, 999], "rating": [2.0, 3.0]}), like=log
    )
    errors = (solver.model.predict(outside).numpy() - outside.target) ** 2
    assert solver.loss(outside) == pytest.approx(float(errors.mean()))
    assert np.isnan(solver.loss(log[:0]))


def test_a_log_without_events_teaches_nothing():
    log = make_log()[:0]
    for kind in ("soft", "hard", "plain"):
        solver = make_solver(log, kind)
        before = everything(solver)
        assert solver.step() == 0
        after = everything(solver)
        assert after.pop(".solver.passes") == 1
        before.pop(".solver.passes")
        assert after == before


def test_it_begins_with_the_mean_of_the_targets():
    log = make_log()
    solver = make_solver(log)
    assert float(solver.model.model.mean) == pytest.approx(float(log.target.mean()), rel=1e-5)
    conversions = replace(log, target=(log.target > 4).astype(np.float32))
    model = make_model(log)
    model.loss = LOSSES["cross-entropy"]
    OnlineDescent(model, conversions, OnlineConfig()).start(0)
    share = float(conversions.target.mean())
    assert float(model.model.mean.sigmoid()) == pytest.approx(share, rel=1e-4)


def test_clusters_are_nobody_elses_business():
    solver = make_solver(make_log())
    assert solver.moves_clusters
    with pytest.raises(CelrecError, match="the clusters of items are moved by the online trainer"):
        solver.evidence("items")
