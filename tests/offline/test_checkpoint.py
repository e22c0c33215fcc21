from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, Split
from celrec.config.building import make_model
from celrec.config.offline import DescentConfig
from celrec.config.plan import Plan
from celrec.config.presets import PRESETS
from celrec.offline import checkpoint as checkpoint_module
from celrec.offline.checkpoint import Checkpoint
from celrec.offline.fitting import fit
from celrec.offline.training import OfflineTraining
from celrec.runtime.state_file import load_state, save_state

FULL, DATA_DRIVEN = Plan("cel", "5", rank=3), Plan("cel", "5", rank=3, preset="least-squares")
PLANS = [
    FULL,
    DATA_DRIVEN,
    Plan("cel", "6", "both", rank=3, model="mf", levels=2),
    Plan("cel", "5", "both", rank=3, model="mf", personalise="20"),
    Plan("cel", "auto", "both", rank=3, personalise="all"),
    Plan("cel", "5", rank=3, preset="released", personalise="20"),
    Plan("cel", "5", rank=3, model="mf", preset="descent", start="random:2", personalise="all"),
    Plan("modulo", "5", rank=3),
    Plan("full", rank=3, model="mf"),
]


class Stopped(BaseException):
    """As final as a lost connection: nobody catches it."""


@pytest.fixture(autouse=True, scope="module")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        for presets in PRESETS.values():
            for name, how in presets.items():
                every = 3 if name in ("default", "least-squares") else 7
                schedule = replace(how.schedule, steps=24, validate_every=every, patience=4)
                personal = replace(how.personal, steps=15, validate_every=every, patience=4)
                patch.setitem(presets, name, replace(how, schedule=schedule, personal=personal))
        yield


@cache
def split():
    planted = Planted(rows=900, users=20, items=25, dim=3, item_clusters=4, noise=0.3)
    return Split.random(planted.interactions())


@cache
def never_stopped(plan):
    """What comes out, and the stages of all validation records on the way."""
    stages = []
    fitted = fit(split(), plan, lambda stage, _: stages.append(stage))
    return fitted, stages


def fit_until(plan, path, validation_records):
    """Train, and stop for good at the given judgement of this attempt.

    Compression is done in every attempt, and counts for nothing.
    """
    seen = 0

    def watch(stage, _):
        nonlocal seen
        seen += not stage.startswith("compress")
        if seen == validation_records:
            raise Stopped

    checkpoint = Checkpoint(path, asdict(plan), resume=True, every=0.0)
    return fit(split(), plan, watch, checkpoint)


def assert_same(one, two):
    # NaN, where nobody judges, is not equal to itself.
    assert repr(one.validation_records) == repr(two.validation_records)
    assert repr(one.chosen) == repr(two.chosen)
    assert one.growth == two.growth
    first, second = one.model.state_dict(), two.model.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


@given(st.sampled_from(PLANS), st.lists(st.integers(1, 25), max_size=3))
@settings(max_examples=8)
def test_training_that_is_stopped_anywhere_comes_to_the_same(tmp_path_factory, plan, stops):
    expected, _ = never_stopped(plan)
    path = tmp_path_factory.mktemp("run") / "state"
    for stop in [*stops, 0]:
        try:
            fitted = fit_until(plan, path, stop)
            break
        except Stopped:
            continue
    assert_same(fitted, expected)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_training_that_is_stopped_at_every_second_judgement_comes_to_the_same(plan, tmp_path):
    expected, stages = never_stopped(plan)
    attempts = 0
    while True:
        attempts += 1
        try:
            fitted = fit_until(plan, tmp_path / "state", 2)
            break
        except Stopped:
            assert attempts <= len(stages)
    assert_same(fitted, expected)
    trained = [stage for stage in stages if not stage.startswith("compress")]
    assert attempts >= len(trained) - 1
    wanted = ["choose"]
    if plan.personal_limit is not None:
        wanted.append("personalise")
    if plan.full_fit is not None:
        wanted.append("compress")
    assert list(dict.fromkeys(stages)) == [*wanted, *(_anew(stage) for stage in wanted)]
    assert list(load_state(tmp_path / "state")["stages"]) == list(dict.fromkeys(trained))


def _anew(stage):
    return {"choose": "train anew"}.get(stage, f"{stage} anew")


def test_what_was_finished_is_not_trained_again(tmp_path):
    plan = PLANS[3]
    first = fit_until(plan, tmp_path / "state", 0)
    checkpoint = Checkpoint(tmp_path / "state", asdict(plan), resume=True)
    again = fit(split(), plan, lambda *_: pytest.fail("it trains"), checkpoint)
    assert_same(again, first)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_stage_begins_with_new_rows_or_with_those_there_are(fresh):
    plan = DATA_DRIVEN
    model = make_model(split().train, plan)
    before = model.users.weight.detach().abs_().clone()
    how = replace(plan.settings(), solver=DescentConfig(learning_rate=0.0))
    training = OfflineTraining(model, split().train, split().valid, how)
    Checkpoint().run("stage", training, lambda *_: None, fresh=fresh)
    assert torch.equal(model.users.weight, before) != fresh


def test_the_best_judgement_is_given_and_not_the_last():
    plan, rng = replace(DATA_DRIVEN, compression="12"), np.random.default_rng(0)
    noise = (replace(part, target=rng.normal(3, 1, len(part))) for part in _learned())
    training = OfflineTraining(make_model(split().train, plan), *noise, plan.settings())
    best = Checkpoint().run("stage", training, lambda *_: None)
    assert best == min(training.validation_records, key=lambda record: record.valid_loss)
    assert best != training.validation_records[-1]


def _learned():
    return split().train, split().valid


# When the state is kept.


def stage(**options):
    plan = DATA_DRIVEN
    training = OfflineTraining(
        make_model(split().train, plan), split().train, split().valid, plan.settings()
    )
    checkpoint = Checkpoint(**options)
    best = checkpoint.run("choose", training, lambda *_: None)
    assert best == training.best
    return checkpoint, training


def test_without_a_path_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint, _ = stage(every=0.0)
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []
    assert not checkpoint.begun


def test_the_state_is_kept_as_often_as_asked_for_and_at_the_end(tmp_path, monkeypatch):
    now, saved = 100.0, []

    def monotonic():
        nonlocal now
        now += 1.0
        return now

    def save(path, state):
        saved.append(len(state["stages"]["choose"]["judgements"]))
        save_state(path, state)

    monkeypatch.setattr(checkpoint_module.time, "monotonic", monotonic)
    monkeypatch.setattr(checkpoint_module, "save_state", save)
    checkpoint, training = stage(path=tmp_path / "state", every=0.0)
    validation_records = len(training.validation_records)
    assert saved == [*range(1, validation_records + 1), validation_records]
    assert checkpoint.begun
    saved.clear()
    stage(path=tmp_path / "state", every=1e9)
    assert saved == [validation_records]
    saved.clear()
    # The clock is asked at each judgement, and when something was saved.
    stage(path=tmp_path / "state", every=3.0)
    assert saved == [*range(3, validation_records + 1, 3), validation_records]


def test_a_state_is_removed_when_it_is_not_needed_any_more(tmp_path):
    checkpoint, _ = stage(path=tmp_path / "state")
    assert (tmp_path / "state").is_file()
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []
    checkpoint.remove()


def test_nothing_has_begun_before_a_state_is_safe(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "state", every=0.0)
    assert not checkpoint.begun

    def interrupted(*_):
        raise Stopped

    monkeypatch.setattr(checkpoint_module, "save_state", interrupted)
    plan = PLANS[0]
    with pytest.raises(Stopped):
        fit(split(), plan, checkpoint=checkpoint)
    assert not checkpoint.begun


# What a state is worth.


def test_without_resuming_an_old_state_is_ignored_and_overwritten(tmp_path):
    path, plan = tmp_path / "state", PLANS[0]
    save_state(path, {"about": {}, "stages": {"choose": {}}})
    checkpoint = Checkpoint(path, asdict(plan), every=0.0)
    assert not checkpoint.begun
    assert_same(fit(split(), plan, checkpoint=checkpoint), never_stopped(plan)[0])
    assert load_state(path)["about"] == asdict(plan)


def test_where_there_is_no_state_training_begins_anew(tmp_path):
    plan = PLANS[0]
    checkpoint = Checkpoint(tmp_path / "state", asdict(plan), resume=True)
    assert not checkpoint.begun
    assert_same(fit(split(), plan, checkpoint=checkpoint), never_stopped(plan)[0])
    assert Checkpoint(resume=True).path is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 1}, "was written with seed 0, not 1; give the same arguments"),
        ({"compression": "6"}, "was written with compression '5', not '6'"),
        ({"frozen": True}, "was written with frozen False, not True"),
        ({"more": 3}, "was written with more None, not 3"),
    ],
)
def test_a_state_for_something_else_is_told(tmp_path, changed, told):
    plan, path = PLANS[0], tmp_path / "state"
    with pytest.raises(Stopped):
        fit_until(plan, path, 2)
    before = path.read_bytes()
    with pytest.raises(CelrecError, match=told) as error:
        Checkpoint(path, {**asdict(plan), **changed}, resume=True)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_state_is_told(tmp_path, damage):
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        fit_until(PLANS[0], path, 2)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    path.write_bytes(
        {"cut": content[:-9], "flipped": bytes(flipped), "empty": b"", "text": b"hello"}[damage]
    )
    with pytest.raises(CelrecError, match="cannot read a training state") as error:
        Checkpoint(path, asdict(PLANS[0]), resume=True)
    assert "\n" not in str(error.value)


def test_a_state_of_another_kind_is_told(tmp_path):
    path = tmp_path / "state"
    save_state(path, {"step": 3})
    with pytest.raises(CelrecError, match="holds no checkpoint; train anew without --resume"):
        Checkpoint(path, resume=True)


@pytest.mark.parametrize(
    "state", [{}, {"model": 3}, None, "other data", "other tables"], ids=lambda state: str(state)
)
def test_a_state_that_does_not_fit_is_told(tmp_path, state):
    path, plan = tmp_path / "state", DATA_DRIVEN
    data = split()
    if isinstance(state, str):
        with pytest.raises(Stopped):
            fit_until(plan, path, 2)
        if state == "other data":
            data = replace(data, train=data.train[1:])
        else:
            plan = replace(plan, compression="6")
    else:
        save_state(path, {"about": {}, "stages": {"choose": state}})
    with pytest.raises(CelrecError, match="does not fit what is trained") as error:
        fit(data, plan, checkpoint=Checkpoint(path, {}, resume=True))
    assert str(error.value).startswith(str(path))
    assert str(error.value).endswith("train anew without --resume")
    assert "\n" not in str(error.value)
