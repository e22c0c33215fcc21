"""One network, trained by one, two and four processes."""

from dataclasses import replace

import polars as pl
import pytest
import torch

import celrec
from celrec import CelrecError, Plan, Planted, Split, fit
from celrec.config.building import make_model
from celrec.offline.training import OfflineTraining, make_solver
from celrec.runtime.communicator import LOCAL
from celrec.runtime.state_file import load_state, save_state
from tests.ranks import Rank, run_ranks

PLANS = {
    "deepfm": {"model": "deepfm"},
    "din": {"model": "din"},
    "din, shops, both": {"model": "din", "side": "both"},
    "dien": {"model": "dien"},
    "mmoe": {"model": "mmoe", "positive": 3.0, "preset": "default"},
    "ranking": {"model": "deepfm", "loss": "ranking", "positive": 3.0},
    "wide": {"model": "widedeep", "preset": "default", "side": "both"},
    "drawn zeros": {"model": "deepfm", "loss": "cross-entropy", "negatives": 2},
    "int8": {"model": "neumf", "embedding": "cel-int8", "rank": 12},
    "tree": {"model": "deepfm", "embedding": "etree"},
    "full": {"model": "deepfm", "embedding": "full", "compression": "100%"},
    "from a factorisation": {"model": "deepfm", "preset": "default"},
    "from a factorisation, shops": {"model": "din", "preset": "default"},
}
QUICK = ("din, shops, both",)


def log_of(name):
    planted = Planted(4_000, 60, 50, dim=3, item_clusters=6, user_clusters=5, noise=0.3)
    log = planted.interactions()
    if "shops" not in name:
        return log
    shop = pl.when(pl.col("user") % 7 > 0).then(pl.col("item") % 9)
    return celrec.read(log.to_frame().with_columns(shop=shop), columns=["shop"])


def plan_of(name):
    return Plan(**{"rank": 6, "compression": "6", "preset": "scratch", **PLANS[name]})


def shorter(how):
    schedule = replace(how.schedule, steps=9, validate_every=3, reassign_every=4, growth=0.3)
    return replace(how, schedule=schedule)


def trained(communicator, name):
    """What comes of a plan: predictions, clusters, and the loss on validation data."""
    check_summed_gradients(communicator)
    plan = plan_of(name)
    log = plan.prepared(log_of(name))
    fitted = fit(Split.random(log), plan, change=shorter, communicator=communicator)
    clusters = {
        key: value
        for key, value in fitted.model.state_dict().items()
        if not value.is_floating_point()
    }
    found = {"valid": fitted.valid_loss, "steps": fitted.steps}
    errors = {key: torch.tensor(value) for key, value in found.items()}
    return {**clusters, **errors, "predictions": fitted.model.predict(log)}


def check_summed_gradients(communicator):
    first, all_, nobody = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(3))
    frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    all_.grad = torch.full((2, 3), 1.0 + communicator.rank)
    if communicator.is_main:
        first.grad = torch.arange(6.0).view(2, 3)
    communicator.all_reduce_gradients([first, frozen, all_, nobody])
    assert torch.equal(first.grad, torch.arange(6.0).view(2, 3))
    assert torch.equal(
        all_.grad, torch.full((2, 3), communicator.size * (communicator.size + 1) / 2)
    )
    assert nobody.grad is None  # so that Adam does not move it
    assert frozen.grad is None


def check(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if value.is_floating_point():
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-4, msg=key)
        else:
            assert torch.equal(found[key], value), key


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in PLANS if name not in QUICK)],
)
def test_two_processes_come_to_what_one_does(tmp_path, name):
    expected = trained(LOCAL, name)
    found = run_ranks(2, tmp_path, trained, name)
    for state in found:
        check(state, expected)
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_so_do_four(tmp_path, name):
    expected = trained(LOCAL, name)
    for state in run_ranks(4, tmp_path, trained, name):
        check(state, expected)


def training_of(name, communicator):
    plan = plan_of(name)
    split = Split.random(plan.prepared(log_of(name)))
    how = shorter(plan.settings())
    return OfflineTraining(
        make_model(split.train, plan), split.train, split.valid, how, communicator
    )


def left_by(training):
    return {name: value.clone() for name, value in training.model.state_dict().items()}


class StoppedError(Exception):
    pass


def stop(record):
    if record.step == 6:
        raise StoppedError


def never_stopped(communicator, name):
    training = training_of(name, communicator)
    training.start()
    training.run()
    return left_by(training)


def stopped(communicator, name, folder):
    training = training_of(name, communicator)
    training.start()
    with pytest.raises(StoppedError):
        training.run(stop)
    if communicator.is_main:
        save_state(f"{folder}/state", training.state_dict())
    return {}


def gone_on(communicator, name, folder):
    training = training_of(name, communicator)
    training.load_state_dict(load_state(f"{folder}/state"))
    training.run()
    return left_by(training)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepfm", "din, shops, both", "ranking"])
def test_any_number_of_processes_can_go_on_with_what_two_have_left(tmp_path, name):
    expected = run_ranks(2, tmp_path / "never", never_stopped, name)[0]
    folder = tmp_path / "stopped"
    run_ranks(2, folder, stopped, name, folder)
    for state in run_ranks(2, folder, gone_on, name, folder):
        assert all(torch.equal(state[key], value) for key, value in expected.items())
    check(gone_on(LOCAL, name, folder), expected)
    for state in run_ranks(4, folder, gone_on, name, folder):
        check(state, expected)


@pytest.mark.parametrize("embedding", ["cafe", "prehash4"])
def test_tables_that_look_at_every_sample_are_trained_by_one(embedding):
    log = log_of("")
    plan = Plan(model="deepfm", rank=6, embedding=embedding, compression="20", preset="scratch")
    model = make_model(log, plan)
    with pytest.raises(CelrecError, match=r"2 processes cannot train .* of items,"):
        make_solver(plan.settings(), model, log, Rank(0, 2))
