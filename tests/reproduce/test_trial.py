import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, Plan, Planted, Split, fit
from celrec.config.offline import DescentConfig, OfflineConfig, Schedule
from reproduce import trial as module
from reproduce.trial import Trial, serves

LOG = Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4).interactions()


@pytest.fixture(autouse=True)
def small_log(monkeypatch):
    monkeypatch.setattr(module, "load_dataset", lambda _: LOG)
    module.load_log.cache_clear()
    yield
    module.load_log.cache_clear()


@given(
    st.sampled_from(
        [
            Plan(),
            Plan(embedding="modulo", compression="40", penalty=2.0),
            Plan(model="deepfm", loss="cross-entropy", positive=4.0, side="both"),
            Plan(embedding="cel-lite", model="mf", rate=3.0, seed=2),
        ]
    ),
    st.integers(1, 5),
    st.dictionaries(st.sampled_from(["criterion", "schedule.steps"]), st.integers(1, 3)),
    st.booleans(),
    st.booleans(),
)
def test_a_cell_tells_all_of_a_trial(plan, fold, change, quick, validated):
    trial = Trial("ml-1m", plan, fold, "sparse", change, quick, validated)
    again = Trial.of(json.loads(json.dumps(trial.cell())))
    assert again == trial
    assert again.cell() == trial.cell()
    assert trial.cell()["plan"]["model"] == plan.model


def test_what_is_trained_in_the_same_way_is_the_same_cell():
    plain = Trial("ml-1m", Plan(preset="paper"))
    usual = plain.plan.settings()
    told = {"splitter.method": usual.splitter.method, "schedule.reassign_every": 40}
    assert replace(plain, change=told).cell() == plain.cell()
    other = replace(plain, change={**told, "schedule.reassign_every": 20})
    assert other.cell()["change"] == {"schedule.reassign_every": 20}
    with pytest.raises(CelrecError, match="no setting 'colour'"):
        replace(plain, change={"splitter.colour": 1}).cell()


@pytest.mark.parametrize(
    ("validated", "found", "expected"),
    [
        (False, {"valid": 0.5, "test": {}, "looked": 1}, True),
        (False, {"valid": 0.5, "test": {}}, False),  # nobody looked
        (False, {"valid": None, "diverged": "so"}, True),
        (False, {"diverged": "so", "steps": []}, False),  # another kind of finding
        (False, {"valid": 0.5, "looked": 1}, False),
        (True, {"valid": 0.5}, True),
        (True, {"steps": []}, False),
    ],
)
def test_findings_serve_if_they_have_all_that_is_looked_at(validated, found, expected):
    cell = Trial("ml-1m", Plan(), validated=validated).cell()
    assert serves(cell, found, ["looked"]) is expected


def test_settings_are_changed_by_their_dotted_names_and_others_stay():
    change = {"solver.learning_rate": 0.5, "schedule.split_every": 0, "criterion": "members"}
    how = OfflineConfig(
        solver=DescentConfig(learning_rate=0.1, l2=3.0), schedule=Schedule(steps=40)
    )
    changed = Trial("ml-1m", Plan(), change=change).changed(how)
    assert changed == replace(
        how,
        solver=DescentConfig(learning_rate=0.5, l2=3.0),
        schedule=Schedule(steps=40, split_every=0),
        criterion="members",
    )


def test_a_setting_of_the_plan_or_of_training_is_set_and_told_by_its_dotted_name():
    trial = Trial("ml-1m", Plan(preset="paper"), change={"criterion": "members"})
    assert trial.having("plan.penalty", 2.0) == replace(
        trial, plan=Plan(preset="paper", penalty=2.0)
    )
    faster = trial.having("solver.learning_rate", 0.5)
    assert faster.change == {"criterion": "members", "solver.learning_rate": 0.5}
    assert trial.change == {"criterion": "members"}
    assert faster.having("solver.learning_rate", 0.1).value_of("solver.learning_rate") == 0.1
    assert trial.value_of("solver.learning_rate") == 1e-4
    assert (trial.value_of("plan.penalty"), trial.value_of("criterion")) == (1.0, "members")
    with pytest.raises(CelrecError, match="Plan has no setting 'speed' to change"):
        trial.having("plan.speed", 1)


@pytest.mark.parametrize("name", ["speed", "schedule.speed", "criterion.speed"])
def test_a_setting_that_is_not_there_is_told(name):
    with pytest.raises(CelrecError, match="has no setting 'speed' to change"):
        Trial("ml-1m", Plan(), change={name: 1}).changed(OfflineConfig())


@pytest.mark.parametrize(("steps", "fewer"), [(400, 50), (40, 5), (10, 4), (2, 2)])
def test_what_is_quick_takes_an_eighth_of_the_steps_but_four_if_there_are_as_many(steps, fewer):
    how = OfflineConfig(schedule=Schedule(steps=steps), personal=Schedule(steps=80))
    quick = Trial("ml-1m", Plan(), quick=True).changed(how)
    assert (quick.schedule.steps, quick.personal.steps) == (fewer, 10)


def test_it_comes_to_what_training_by_hand_comes_to():
    plan = Plan(embedding="modulo", compression="5", rank=3)
    trial = Trial("planted", plan, fold=2, change={"schedule.steps": 6})
    found = trial.run(lambda fitted, split: {"sizes": [fitted.steps, len(split.test)]})
    split = Split.fold(LOG, 2, of=5, seed=0)
    fitted = fit(split, plan, change=trial.changed)
    errors = fitted.model.predict(split.test).numpy() - split.test.target
    assert found["test"]["mse"] == pytest.approx(float((errors**2).mean()), rel=1e-5)
    assert (found["rows"], found["table"], found["index"]) == (5, 60, 0)
    assert found["sizes"] == [fitted.steps, len(split.test)]
    assert json.loads(json.dumps(found)) == found


def test_for_validation_nothing_is_seen_of_the_test_part():
    trial = Trial("planted", Plan(compression="4", rank=3), change={"schedule.steps": 6})
    assert set(replace(trial, validated=True).run()) == {"valid"}
    assert replace(trial, validated=True).run()["valid"] == pytest.approx(trial.run()["valid"])


def test_a_trial_that_diverged_has_no_loss():
    change = {"solver.learning_rate": 1e9, "solver.bounded": False, "schedule.steps": 60}
    plan = Plan(compression="4", rank=3, model="mf", preset="descent")
    trial = Trial("planted", plan, change=change)
    for one in (trial, replace(trial, validated=True)):
        found = one.run()
        assert found["valid"] is None
        assert "lower the learning rate" in found["diverged"]
