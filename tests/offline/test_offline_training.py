import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, Split, read
from celrec.cel.reassignment import Reassignment
from celrec.config.building import make_model
from celrec.config.offline import DescentConfig, OfflineConfig, Schedule
from celrec.config.plan import Plan
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.offline.factorisation_solver import initialise_factors
from celrec.offline.training import OfflineTraining
from celrec.recommender.clusters import personalise
from celrec.recommender.model import Model
from celrec.runtime.state_file import load_state, save_state

PLANTED = Planted(rows=20_000, users=200, items=300, dim=4, item_clusters=6, noise=0.3)
HOW = OfflineConfig(
    solver=DescentConfig(learning_rate=1e-3, l2=0.1),
    schedule=Schedule(steps=300, split_every=10, reassign_every=20, validate_every=25, patience=3),
    reassignment=Reassignment(keep=0.3),
)


@pytest.fixture(scope="module")
def split():
    return Split.random(PLANTED.interactions())


@pytest.fixture(scope="module")
def noise():
    """Ratings that clusters tell nothing about, so that the best model is an early one."""
    rng = np.random.default_rng(0)
    rating = rng.normal(3, 1, 1500)
    log = {"user": rng.integers(25, size=1500), "item": rng.integers(30, size=1500)}
    return Split.random(read({**log, "rating": rating}))


def model_for(split, clusters=6):
    log = split.train
    items = ClusteredEmbedding(log.num_items, 8, max_clusters=clusters)
    return Model(FullEmbedding(log.num_users, 8), items)


def data_driven(compression, rank=4):
    """A plan whose clusters learn from the data themselves."""
    return Plan(compression=compression, rank=rank, preset="least-squares")


def trained(model, train, valid, how, watch=lambda _: None):
    training = OfflineTraining(model, train, valid, how)
    training.start()
    training.run(watch)
    return training


def train(*words, **options):
    return trained(*words, **options).validation_records


def error(model, log):
    return float(np.mean((model.predict(log).numpy() - log.target) ** 2))


def equal(one, two):
    """Whether two models are the same to the last bit."""
    first, second = one.state_dict(), two.state_dict()
    return list(first) == list(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def with_schedule(how, **changes):
    return replace(how, schedule=replace(how.schedule, **changes))


# What is left.


def test_the_model_left_is_the_one_that_validation_liked_best(split):
    model = model_for(split)
    validation_records = train(model, split.train, split.valid, HOW)
    best = min(record.valid_loss for record in validation_records)
    assert error(model, split.valid) == pytest.approx(best, rel=1e-6)
    assert model.items.num_clusters == 6
    assert [j.step for j in validation_records] == list(
        range(25, validation_records[-1].step + 1, 25)
    )


def test_clusters_learn_what_a_mean_cannot(split):
    model = model_for(split)
    train(model, split.train, split.valid, HOW)
    spread = float(np.var(split.test.target))
    assert error(model, split.test) < 0.2 * spread


def test_the_same_seed_gives_the_same_model_and_another_seed_another(split):
    one, same, other = (model_for(split) for _ in range(3))
    how = with_schedule(HOW, steps=60)
    for model, seed in ((one, 0), (same, 0), (other, 1)):
        train(model, split.train, split.valid, replace(how, seed=seed))
    assert equal(one, same)
    assert not equal(one, other)


def test_a_start_has_its_seed_and_may_scale_each_row(split):
    one, same, other, scaled = (model_for(split) for _ in range(4))
    for model, changes in ((one, {}), (same, {}), (other, {"seed": 1}), (scaled, {"per_row": 1})):
        solver = replace(HOW.solver, per_row_start="per_row" in changes)
        how = replace(HOW, seed=changes.get("seed", 0), solver=solver)
        OfflineTraining(model, split.train, split.valid, how).start()
    assert equal(one, same)
    assert not torch.equal(one.users.weight, other.users.weight)
    largest = scaled.users.weight[: split.train.num_users].amax(1)
    assert torch.equal(largest, torch.ones_like(largest))
    assert (one.users.weight[: split.train.num_users].amax(1) < 1).sum() > 100


def test_the_moves_have_their_seed_too(noise):
    one, other = (model_for(noise) for _ in range(2))
    for model, seed in ((one, 0), (other, 1)):
        initialise_factors(model, torch.Generator().manual_seed(0))
        how = replace(with_schedule(HOW, steps=45), seed=seed)
        OfflineTraining(model, noise.train, noise.valid[:0], how).run()
    assert not torch.equal(one.items.assignment, other.items.assignment)


def test_both_sides_can_be_clustered(split):
    log = split.train
    users = ClusteredEmbedding(log.num_users, 8, max_clusters=10)
    model = Model(users, ClusteredEmbedding(log.num_items, 8, max_clusters=6))
    training = trained(model, split.train, split.valid, HOW)
    assert model.users.num_clusters == 10
    assert training.validation_records[-1].valid_loss < training.validation_records[0].valid_loss
    assert training.grown_to == {"users": 10, "items": 6}


def test_a_refit_takes_exactly_the_steps_it_is_told(split):
    model = model_for(split)
    how = with_schedule(HOW, steps=40, validate_every=40)
    train(model, split.train, split.train[:0], how)
    assert model.items.num_clusters == 5  # one at the start and a split at each tenth step


def test_training_without_validation_data_runs_to_the_end_and_leaves_the_last_state(split):
    model, last = model_for(split), []
    how = with_schedule(HOW, steps=70, patience=1)

    def watch(record):
        assert math.isnan(record.valid_loss)
        last.append(model.items.weight.detach().clone())

    training = trained(model, split.train, split.valid[:0], how, watch)
    assert training.validation_records[-1].step == 70
    assert training.best is training.validation_records[-1]
    assert torch.equal(model.items.weight, last[-1])


def test_without_a_start_training_goes_on_from_the_rows_there_are(split):
    model = model_for(split)
    train(model, split.train, split.valid, HOW)
    before = error(model, split.valid)
    training = OfflineTraining(model, split.train, split.valid, with_schedule(HOW, steps=50))
    training.run()
    assert training.validation_records[0].train_loss < 1.1 * error(model, split.train)
    assert error(model, split.valid) < 1.1 * before


# When it is judged, and when it ends.


@given(st.integers(1, 40), st.integers(1, 15))
@settings(max_examples=15)
def test_judgements_come_every_so_many_steps_and_at_the_last_one(steps, validate_every):
    split = tiny()
    how = with_schedule(HOW, steps=steps, validate_every=validate_every, patience=100)
    validation_records = train(model_for(split, 3), split.train, split.valid, how)
    due = {*range(validate_every, steps + 1, validate_every), steps}
    assert [record.step for record in validation_records] == sorted(due)


def test_a_judgement_tells_the_errors_the_clusters_and_the_moves(split):
    model, moves, errors = model_for(split), [], []
    how = with_schedule(HOW, steps=45, validate_every=1, patience=100)
    training = OfflineTraining(model, split.train, split.valid, how)
    training.start()
    before, seen = model.items.assignment.clone(), error(model, split.train)

    def watch(record):
        nonlocal before, seen
        assert record.train_loss == pytest.approx(seen, rel=1e-4)  # before the step
        assert record.valid_loss == pytest.approx(error(model, split.valid), rel=1e-5)
        assert record.clusters == model.items.num_clusters
        moves.append(record.moved)
        errors.append(int((model.items.assignment[:-1] != before[:-1]).sum()))
        before, seen = model.items.assignment.clone(), error(model, split.train)

    training.run(watch)
    assert sum(moves) > 0
    # A step with both moves may put an item back where it was.
    assert [m for i, m in enumerate(moves, 1) if i % 20] == [
        m for i, m in enumerate(errors, 1) if i % 20
    ]


def test_moves_are_summed_up_between_judgements(noise):
    often, rarely = (
        train(
            model_for(noise, 6),
            noise.train,
            noise.valid,
            with_schedule(HOW, steps=60, validate_every=every, patience=100),
        )
        for every in (1, 30)
    )
    assert [j.moved for j in rarely] == [
        sum(j.moved for j in often[:30]),
        sum(j.moved for j in often[30:]),
    ]


def test_reassignment_ends_when_it_is_told(split):
    moved = []
    schedule = Schedule(
        steps=200, split_every=10, reassign_every=20, reassign_until=100, validate_every=20
    )
    how = OfflineConfig(HOW.solver, schedule, reassignment=HOW.reassignment)
    train(model_for(split), split.train, split.valid, how, watch=moved.append)
    assert any(record.moved for record in moved if record.step <= 100)
    assert not any(record.moved for record in moved if record.step > 120)


def test_patience_counts_from_the_best_judgement_once_all_clusters_are_there(noise):
    plan = data_driven("20")
    how, model = with_schedule(plan.settings(), patience=4), make_model(noise.train, plan)
    training = trained(model, noise.train, noise.valid, how)
    since = training.validation_records[training.validation_records.index(training.best) + 1 :]
    assert training.validation_records[-1].step < how.schedule.steps
    assert training.grown_to == {"items": 20}
    assert len(since) >= 4
    assert all(record.clusters < 20 for record in since[4:])  # it has to wait for splits


def test_growth_can_be_stopped_before_all_clusters_are_there(noise):
    plan = data_driven("auto")
    model = make_model(noise.train, plan)
    how = with_schedule(plan.settings(), patience=2)
    training = trained(model, noise.train, noise.valid, how)
    assert training.grown_to["items"] < model.items.max_clusters == 15
    assert training.validation_records.index(training.best) == len(training.validation_records) - 3


def test_states_that_still_grow_can_be_left_unjudged(noise):
    schedule = replace(HOW.schedule, steps=200, validate_every=5, patience=2)
    how = replace(HOW, schedule=schedule)
    all_judged = train(model_for(noise), noise.train, noise.valid, how)
    first_grown = next(j for j in all_judged if j.clusters == 6)
    assert first_grown is not all_judged[0]
    how = replace(HOW, schedule=replace(schedule, validate_growing=False))
    training = trained(model_for(noise), noise.train, noise.valid, how)
    validation_records = training.validation_records
    assert [j.clusters for j in validation_records] == [6] * len(validation_records)
    assert replace(validation_records[0], moved=0) == replace(first_grown, moved=0)
    # Splits and moves from before the first judgement are counted in it.
    before = all_judged[: all_judged.index(first_grown) + 1]
    assert validation_records[0].moved == sum(j.moved for j in before)
    best = min(
        range(len(validation_records)), key=lambda number: validation_records[number].valid_loss
    )
    assert len(validation_records) == best + 3
    assert training.model.tables["items"].num_clusters == 6


def test_a_last_step_is_judged_even_if_clusters_still_grow(noise):
    schedule = replace(HOW.schedule, steps=20, validate_every=5, validate_growing=False)
    (last,) = train(model_for(noise), noise.train, noise.valid, replace(HOW, schedule=schedule))
    assert (last.step, last.clusters) == (20, 3)


def test_growth_that_is_not_judged_cannot_be_stopped():
    with pytest.raises(CelrecError, match="validate_growing=False"):
        Schedule(stop_growing=True, validate_growing=False)


@pytest.mark.parametrize("least_gain", [0.0, 1e-3, 1e-2, 0.1])
def test_an_error_that_is_lower_by_less_is_not_better(split, least_gain):
    schedule = {"least_gain": least_gain, "steps": 40, "validate_every": 2, "patience": 100}
    plan = data_driven("6")
    how, model = with_schedule(plan.settings(), **schedule), make_model(split.train, plan)
    # On a scale of its own, as what counts is the share of the variance.
    log, valid = (replace(part, target=part.target / 8) for part in (split.train, split.valid))
    training = trained(model, log, valid, how)
    best, variance = training.validation_records[0], float(np.var(valid.target))
    for record in training.validation_records:
        if record.valid_loss < best.valid_loss - least_gain * variance:
            best = record
    assert training.best == best
    assert error(model, valid) == pytest.approx(best.valid_loss, rel=1e-6)


# Ids that are not known.


def test_rows_with_unseen_ids_are_not_learned_from_but_judged(noise):
    plain = noise.train
    user, item = plain.user.copy(), plain.item.copy()
    user[::7], item[::5] = -1, -1
    with_unseen = replace(plain, user=user, item=item)
    how = with_schedule(HOW, steps=40, validate_every=10)
    one, two = model_for(noise), model_for(noise)
    train(one, with_unseen, noise.valid, how)
    train(two, plain[(user >= 0) & (item >= 0)], noise.valid, how)
    assert equal(one, two)
    unseen = replace(noise.valid, item=np.full(len(noise.valid), -1, np.int32))
    validation_records = train(one, plain, unseen, how)
    assert all(record.valid_loss > 0 for record in validation_records)


# To go on is as never to have stopped.


class Stopped(BaseException):
    pass


@cache
def tiny():
    planted = Planted(rows=900, users=20, items=25, dim=3, item_clusters=4, noise=0.3)
    return Split.random(planted.interactions())


def stoppable(make, how, fresh, stops, path):
    """Train, but at each judgement in `stops` by a fresh training of a fresh model from a file."""
    split = tiny()
    training = OfflineTraining(make(), split.train, split.valid, how)
    if fresh:
        training.start()

    def save():
        if len(training.validation_records) in stops:
            stops.remove(len(training.validation_records))
            save_state(path, training.state_dict())
            raise Stopped

    while True:
        try:
            training.run(save=save)
            return training
        except Stopped:
            training = OfflineTraining(make(), split.train, split.valid, how)
            training.load_state_dict(load_state(path))


SETTINGS = [
    (model, preset, side, compression, personal)
    for model, preset in [
        ("nmf", "least-squares"),
        ("nmf", "descent"),
        ("nmf", "released"),
        ("mf", "least-squares"),
        ("mf", "descent"),
    ]
    for side, compression, personal in [
        ("items", "6", False),
        ("both", "6", True),
        ("both", "auto", False),
        ("items", "auto", True),
    ]
]


@cache
def scenario(model, preset, side, compression, personal):
    """What makes the model, how it is trained, and what becomes of it without a stop."""
    plan = Plan("cel", compression, side, 3, preset, model=model, seed=5)
    how = plan.settings()
    # Not a multiple of the steps after which biases are fitted, or clusters split.
    every = 3 if preset == "least-squares" else 7
    first = with_schedule(how, steps=40, validate_every=every, patience=4)

    def make():
        return make_model(tiny().train, plan)

    if personal:
        base = trained(make(), tiny().train, tiny().valid, first).model
        # Solvers keep private rows near where they are at the beginning of this stage.
        second = replace(how, schedule=replace(how.personal, steps=25, validate_every=every))
        scenario = (lambda: personalise(base, tiny().train, 20)), second, False
    else:
        scenario = make, first, True
    return *scenario, stoppable(*scenario, set(), None)


def assert_same(one, two):
    assert one.validation_records == two.validation_records
    assert one.best == two.best
    assert one.grown_to == two.grown_to
    assert equal(one.model, two.model)


@pytest.mark.parametrize("words", SETTINGS, ids=lambda words: " ".join(map(str, words)))
def test_a_stop_at_each_judgement_changes_nothing(words, tmp_path):
    make, how, fresh, never_stopped = scenario(*words)
    everywhere = set(range(1, len(never_stopped.validation_records) + 1))
    assert len(everywhere) > 2
    stopped = stoppable(make, how, fresh, set(everywhere), tmp_path / "state")
    assert_same(stopped, never_stopped)


@given(st.sampled_from(SETTINGS), st.sets(st.integers(1, 14), max_size=3))
@settings(max_examples=25)
def test_stops_at_any_judgements_change_nothing(tmp_path_factory, words, stops):
    make, how, fresh, never_stopped = scenario(*words)
    path = tmp_path_factory.mktemp("stopped") / "state"
    assert_same(stoppable(make, how, fresh, set(stops), path), never_stopped)


def test_reassignment_that_has_ended_does_not_begin_again(tmp_path):
    plan = data_driven("6", rank=3)
    how = with_schedule(plan.settings(), steps=30, reassign_until=10, patience=100)
    scenario = (lambda: make_model(tiny().train, plan)), how, True
    never = stoppable(*scenario, set(), None)
    assert any(record.moved for record in never.validation_records[:5])
    assert_same(stoppable(*scenario, {3, 8}, tmp_path / "state"), never)


def test_what_has_ended_does_not_go_on(noise, tmp_path):
    # The best model has fewer clusters than there may be: it looks as if there were splits to come.
    plan = data_driven("20")
    one, two = (make_model(noise.train, plan) for _ in range(2))
    ended = trained(one, noise.train, noise.valid, plan.settings())
    assert one.items.num_clusters < 20 == ended.grown_to["items"]
    save_state(tmp_path / "state", ended.state_dict())
    again = OfflineTraining(two, noise.train, noise.valid, plan.settings())
    again.load_state_dict(load_state(tmp_path / "state"))
    again.run(watch=lambda _: pytest.fail("it goes on"))
    assert_same(again, ended)
    steps = len(ended.validation_records)
    ended.run()
    assert len(ended.validation_records) == steps


@pytest.mark.parametrize("column", ["user", "item", "target"])
@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_state_from_other_data_is_told(column, part):
    split = tiny()
    how = with_schedule(HOW, steps=10, validate_every=5)
    state = trained(model_for(split, 3), split.train, split.valid, how).state_dict()
    log = getattr(split, part)
    values = getattr(log, column).copy()
    values[0] = values[0] - 1 if values[0] > 1 else values[0] + 1
    other = replace(split, **{part: replace(log, **{column: values})})
    training = OfflineTraining(model_for(split, 3), other.train, other.valid, how)
    with pytest.raises(CelrecError, match="training on other data"):
        training.load_state_dict(state)


def test_ids_without_training_data_are_treated_as_unseen_ones():
    log = Planted(3_000, 40, 60, dim=3, item_clusters=5, noise=0.2).interactions()
    silent = np.isin(log.item, [3, 7, 20])
    plan = data_driven("5")
    model = make_model(log, plan)
    how = replace(plan.settings(), schedule=Schedule(30, split_every=1, reassign_every=1))
    training = OfflineTraining(model, log[~silent], log[:0], how)
    training.start()
    training.run()
    rows = model.item_rows
    assert rows.num_clusters == 5
    assert rows.assignment[[3, 7, 20]].tolist() == [rows.unseen_cluster] * 3
