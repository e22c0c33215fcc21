from dataclasses import replace

import numpy as np
import pytest

from celrec import Planted, Split
from celrec.cel.reassignment import Reassignment
from celrec.cel.split import Splitter
from celrec.config.offline import DescentConfig
from celrec.config.plan import Plan
from celrec.config.presets import PRESETS
from celrec.offline.fitting import fit


def test_the_preset_paper_is_what_the_paper_says():
    how = PRESETS["nmf"]["paper"]
    assert how.solver == DescentConfig(
        optimiser="gd",
        learning_rate=1e-4,
        l2=1.0,  # λ_reg, with ½
        shrink_to_mean=0.0,
        shrink_to_parent=0.0,
        average=True,
        penalty_inside=False,  # ∂L_k alone is divided by the number of items
        projection="abs",
        bounded=False,
        pull_to_anchor=50.0,  # λ_p, with ½
        per_row_start=True,
    )
    assert (how.schedule.split_every, how.schedule.growth) == (10, 0.0)
    assert (how.schedule.reassign_every, how.schedule.reassign_until) == (40, 0)
    assert how.schedule.steps == 2000
    assert how.splitter == Splitter("gpca", "z-score", "zero")
    assert how.reassignment == Reassignment(keep=0.0, evidence=0, margin=0.0)
    assert how.criterion == "interactions"
    assert how.rank == 64


def test_the_preset_released_is_what_the_code_of_the_authors_does():
    how = PRESETS["nmf"]["released"]
    assert how.solver == DescentConfig(
        optimiser="gd",
        learning_rate=1.25e-4,
        l2=2.0,  # 1 without ½
        shrink_to_mean=500.0,
        shrink_to_parent=0.0,
        average=True,
        penalty_inside=True,
        projection="clip",
        bounded=False,
        pull_to_anchor=100.0,  # 50 without ½
    )
    assert (how.schedule.split_every, how.schedule.growth) == (10, 0.0)
    assert (how.schedule.reassign_every, how.schedule.reassign_until) == (40, 0)
    assert how.schedule.steps == 2000
    assert how.splitter == Splitter("gpca", "centre", "zero")
    assert how.reassignment == Reassignment(keep=0.309, evidence=0, margin=0.0)
    assert how.criterion == "interactions"
    assert how.rank == 64


def test_every_model_has_a_default_and_every_preset_its_own_settings():
    for presets in PRESETS.values():
        assert next(iter(presets)) == "default"
        assert len({repr(how) for how in presets.values()}) == len(presets)


@pytest.fixture(scope="module")
def split():
    planted = Planted(rows=2500, users=30, items=40, dim=3, item_clusters=4, noise=0.3)
    return Split.random(planted.interactions())


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        pytest.param(model, preset, marks=[pytest.mark.slow] if model == "dien" else [])
        for model in PRESETS
        for preset in PRESETS[model]
    ],
)
def test_every_preset_learns_what_a_mean_cannot(split, model, preset, monkeypatch):
    how = PRESETS[model][preset]
    steps = {"default": 40, "scratch": 60}.get(preset, 250)
    schedule, personal = replace(how.schedule, steps=steps), replace(how.personal, steps=25)
    monkeypatch.setitem(PRESETS[model], preset, replace(how, schedule=schedule, personal=personal))
    plan = Plan(
        "cel",
        "4",
        rank=12 if model == "neumf" else 4,
        model=model,
        preset=preset,
        personalise="none" if how.compression is not None else "20",
        positive=4.0 if model == "mmoe" else None,
    )
    fitted = fit(split, plan)
    error = np.mean((fitted.model.predict(split.test).numpy() - split.test.target) ** 2)
    assert error < 0.5 * np.var(split.test.target)
    for chosen in fitted.chosen.values():
        assert chosen.valid_loss < 0.5 * np.var(split.valid.target)
