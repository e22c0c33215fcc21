from dataclasses import replace

import numpy as np
import pytest
import torch

from celrec import CelrecError, Planted, Split
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.modulo import ModuloEmbedding
from celrec.training.fit import fit, make_model
from celrec.training.offline import Schedule
from celrec.training.plan import Plan
from celrec.training.presets import PRESETS


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    schedule = Schedule(steps=200, split_every=5, judge_every=20)
    quick = replace(PRESETS["nmf"]["default"], schedule=schedule)
    monkeypatch.setitem(PRESETS["nmf"], "default", quick)


@pytest.fixture(scope="module")
def split():
    planted = Planted(rows=6000, users=60, items=80, dim=3, item_clusters=4, noise=0.3)
    return Split.random(planted.interactions())


@pytest.mark.parametrize(
    ("compression", "ids", "rows"),
    [
        ("1%", 3706, 37),
        ("0.5%", 3706, 19),
        ("40", 3706, 40),
        ("100%", 7, 7),
        ("1%", 5, 1),
        ("99", 7, 7),
    ],
)
def test_rows_are_a_share_of_the_ids_or_a_number(compression, ids, rows):
    assert Plan(compression=compression).rows(ids) == rows


@pytest.mark.parametrize(
    ("side", "embedding", "kinds"),
    [
        ("items", "cel", (FullEmbedding, ClusteredEmbedding)),
        ("users", "cel", (ClusteredEmbedding, FullEmbedding)),
        ("both", "modulo", (ModuloEmbedding, ModuloEmbedding)),
        ("both", "full", (FullEmbedding, FullEmbedding)),
    ],
)
def test_the_compressed_sides_get_the_method(split, side, embedding, kinds):
    model = make_model(split.train, Plan(embedding, "10%", side))
    assert (type(model.users), type(model.items)) == kinds


@pytest.mark.parametrize("embedding", ["cel", "modulo", "full"])
def test_every_method_learns_something(split, embedding):
    fitted = fit(split, Plan(embedding, "5", rank=8))
    error = np.mean((fitted.model.predict(split.test).numpy() - split.test.target) ** 2)
    assert error < np.var(split.test.target)


def test_the_same_plan_gives_the_same_model_and_another_seed_another(split):
    one, same, other = (fit(split, Plan("cel", "5", rank=8, seed=s)).model for s in (0, 0, 1))
    assert torch.equal(one.users.weight, same.users.weight)
    assert not torch.equal(one.users.weight, other.users.weight)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"embedding": "magic"}, "embedding must be one of cel, modulo, full"),
        ({"side": "left"}, "side must be one of items, users, both"),
        ({"preset": "best"}, "preset must be one of"),
        ({"compression": "small"}, "a share such as '1%'"),
        ({"compression": "-3"}, "not be negative"),
    ],
)
def test_wrong_plans_are_told(wrong, message):
    with pytest.raises(CelrecError, match=message):
        Plan(**wrong)
